"""Every parallel layout from the command line: twenty steps from one checkpoint, losses as in one process."""

import pytest
from runs import losses, mb, train_here

SHAPE = [
    "model.num_layers=4",
    "model.vocab_size=384",
    "train.micro_batch_size=2",
    "validation.eval_interval=null",
]
SHAPE += ["validation.eval_iters=0"]
TP2 = "model.tensor_model_parallel_size=2"
PP2 = "model.pipeline_model_parallel_size=2"
LAYOUTS = {
    "DP2": (2, []),
    "DP2 distributed optimizer, overlapped": (2, ["ddp.use_distributed_optimizer=true"]),
    "TP2": (2, [TP2]),
    "TP2 SP": (2, [TP2, "model.sequence_parallel=true"]),
    "PP2": (2, [PP2]),
    "PP2 VPP2": (2, [PP2, "model.virtual_pipeline_model_parallel_size=2"]),
    "CP2": (2, ["model.context_parallel_size=2"]),
    "TP2 PP2": (4, [TP2, PP2]),
    "TP2 DP2": (4, [TP2]),
}
CONTAINED = {"DP2", "TP2", "PP2", "TP2 DP2", "TP2 PP2"}
"""Layouts whose parts are all in others of the table."""
MOE = [
    "model.num_moe_experts=4",
    "model.moe_token_dispatcher_type=alltoall",
    "model.moe_router_topk=2",
    "model.moe_ffn_hidden_size=64",
]


@pytest.fixture(scope="module")
def dense(overrides, tmp_path_factory):
    """Weights to start from, and the losses of one process that started from them."""
    return from_one_checkpoint([*overrides, *SHAPE], tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(overrides, tmp_path_factory):
    """The same for a model with experts."""
    return from_one_checkpoint([*overrides, *SHAPE, *MOE], tmp_path_factory.mktemp("experts"))


def from_one_checkpoint(words, folder):
    train_here([*words, "train.train_iters=2", "checkpoint.save_interval=2"], folder / "first")
    words = [*words, f"checkpoint.pretrained_checkpoint={folder}/first/checkpoints"]
    train_here(words, folder / "one")
    return words, losses(folder / "one")


def largest_difference(start, processes, layout, out):
    words, reference = start
    result = mb("pretrain", *words, *layout, "--nproc", str(processes), "--out", str(out))
    assert (result.returncode, result.stderr) == (0, "")
    steps = losses(out)
    assert steps.keys() == reference.keys()
    return max(abs(steps[step] - reference[step]) for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name in CONTAINED)) for name in LAYOUTS]
)
def test_a_layout_trains_as_one_process_does(dense, name, tmp_path):
    processes, layout = LAYOUTS[name]
    assert largest_difference(dense, processes, layout, tmp_path / "run") <= 1e-5


@pytest.mark.slow
def test_experts_on_two_ranks_train_as_in_one_process(experts, tmp_path):
    assert largest_difference(experts, 2, ["model.expert_model_parallel_size=2"], tmp_path / "run") <= 1e-5


@pytest.mark.parametrize(
    ("processes", "layout", "message"),
    [
        (
            2,
            ["model.tensor_model_parallel_size=3"],
            "2 processes are not a multiple of tp x pp x cp = 3 x 1 x 1",
        ),
        (2, [PP2, "model.num_layers=3"], "num_layers"),
        (4, ["train.global_batch_size=6", "train.micro_batch_size=1"], "6 is not a multiple of 4"),
        (2, [TP2, "model.num_query_groups=1", "model.num_attention_heads=1"], "num_attention_heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_start(overrides, processes, layout, message, tmp_path):
    out = tmp_path / "run"
    result = mb("pretrain", *overrides, *layout, "--nproc", str(processes), "--out", str(out))
    assert (result.returncode, out.exists()) == (1, False)
    assert message in result.stderr
