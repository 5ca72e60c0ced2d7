"""Memory of a run: overhead in the plan, facts, and the rules that compare it with the GPU."""

import pytest

from mb_plan import RULES, make_plan, planned_facts
from mb_plan import facts as facts_module
from mb_plan.memory.overhead import CUDA_BYTES, NCCL_BYTES
from mb_schema.rules import check

MODEL = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "gated_linear_unit": True,
    "vocab_size": 32_000,
    "seq_length": 4096,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bf16": True,
}
H100 = {"gpu": "h100", "world_size": 1, "env": {}, "transformer_engine": True}


def sections(*, micro_batch_size=1, **model):
    """Return the sections of a run in BF16."""
    return {
        "model": {**MODEL, **model},
        "train": {"global_batch_size": 8, "micro_batch_size": micro_batch_size},
        "dataset": {"seq_length": 4096},
        "optimizer": {"bf16": True},
    }


def problems(*, facts=H100, **changes):
    """Check a model on one H100, and return the ids of the problems."""
    known = planned_facts(sections(**changes), facts)
    return [problem.id for problem in check({}, RULES, facts={**facts, **known})]


def test_a_state_that_does_not_fit_is_an_error():
    assert problems() == ["PL01", "PL02"]


def test_activations_that_do_not_fit_are_a_warning():
    assert problems(num_layers=12) == []
    assert problems(num_layers=12, micro_batch_size=8) == ["PL02"]


def test_a_run_can_start_anyway():
    assert problems(facts={**H100, "allow_oom": True}) == ["PL02"]


def test_facts_have_the_bytes_of_the_run_and_of_the_gpu():
    plan, found = make_plan(sections(), world_size=1), planned_facts(sections(), H100)
    memory = plan.peak.rank_bytes
    assert found == {
        "memory_of_state": memory.weights + memory.gradients + memory.optimizer,
        "memory_of_tensors": memory.total,
        "memory_of_run": memory.total + plan.overhead.total,
        "memory_of_gpu": int(79.1 * 2**30),
        "allow_oom": False,
    }
    assert planned_facts(sections(), {**H100, "gpu": "abacus"})["memory_of_gpu"] is None


def test_the_step_is_predicted_only_for_checkpoints(monkeypatch):
    saving = {**sections(), "checkpoint": {"save": "run", "save_interval": 10}}
    saving["train"]["train_iters"] = 1000
    memory = planned_facts(sections(), H100)
    assert planned_facts(saving, H100).keys() - memory.keys() >= {"best_save_interval", "lost_hours"}
    monkeypatch.setattr(facts_module, "try_predict", None)
    assert planned_facts(saving, H100, saves=False) == memory


@pytest.mark.parametrize(
    "facts", [{**H100, "gpu": None}, {**H100, "cpu": True}, {**H100, "world_size": None}]
)
def test_nothing_is_known_without_a_gpu_and_a_number_of_processes(facts):
    assert planned_facts(sections(), facts) == {}


def test_a_model_that_cannot_be_planned_has_no_facts_on_memory():
    assert planned_facts({"model": {"num_layers": 2}}, H100) == {}


def test_the_overhead_has_a_part_for_each_communicator():
    plan = make_plan({"model": {**MODEL, "tensor_model_parallel_size": 2}}, world_size=4)
    assert (plan.overhead.cuda, plan.overhead.nccl) == (CUDA_BYTES, 2 * NCCL_BYTES)
    assert plan.needed_bytes is None  # activations depend on the batch


def test_expandable_segments_fragment_less():
    plain = make_plan(sections(), world_size=1).overhead.fragmentation
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert 0 < make_plan({**sections(), "env_vars": variables}, world_size=1).overhead.fragmentation < plain
