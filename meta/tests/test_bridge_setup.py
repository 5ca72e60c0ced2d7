"""Parts of a run, and models of checkpoints, for scripts for Megatron-Bridge with a loop of their own."""

import argparse
import os

import pytest
import torch

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

from megatron.core import parallel_state  # noqa: E402
from megatron.core.num_microbatches_calculator import get_num_microbatches, update_num_microbatches  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.utils import unwrap_model  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

import mb_trainer  # noqa: E402
from mb_config import OverrideError  # noqa: E402
from mb_loop import CallbackManager  # noqa: E402
from mb_metrics.errors import MetricsError  # noqa: E402
from mb_trainer import pretrain  # noqa: E402
from mb_trainer.bridge import scripts  # noqa: E402
from mb_trainer.bridge.data.utils import get_dataset_provider  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402
from mb_trainer.bridge.models.model_provider import get_model  # noqa: E402
from mb_trainer.bridge.recipes.utils.dataset_utils import (  # noqa: E402
    DATASET_PRESETS,
    build_dataset_config,
    dataset_train_mode,
)
from mb_trainer.bridge.training.config import (  # noqa: E402
    ConfigContainer,
    DistributedDataParallelConfig,
    TrainingConfig,
    apply_environment_variables,
)
from mb_trainer.bridge.training.gpt_step import forward_step  # noqa: E402
from mb_trainer.bridge.training.initialize import (  # noqa: E402
    destroy_global_state,
    initialize_megatron,
    set_jit_fusion_options,
)
from mb_trainer.bridge.training.model_load_save import (  # noqa: E402
    build_and_load_model,
    dtype_from_hf,
    dtype_from_str,
    load_megatron_model,
    load_model_config,
    load_tokenizer,
    save_megatron_model,
    temporary_distributed_context,
    torch_dtype_from_mcore_config,
)
from mb_trainer.bridge.training.optim import setup_optimizer  # noqa: E402
from mb_trainer.bridge.training.setup import setup  # noqa: E402
from mb_trainer.bridge.training.state import GlobalState  # noqa: E402
from mb_trainer.bridge.training.utils.flop_utils import num_floating_point_operations  # noqa: E402
from mb_trainer.bridge.training.utils.log_utils import setup_logging  # noqa: E402
from mb_trainer.bridge.training.utils.omegaconf_utils import (  # noqa: E402
    apply_overrides,
    create_omegaconf_dict_config,
    parse_hydra_overrides,
)
from mb_trainer.bridge.utils import safe_url  # noqa: E402
from mb_trainer.config import ConfigContainer as PlainContainer  # noqa: E402
from mb_trainer.errors import UserCodeError  # noqa: E402
from mb_trainer.requests import read_request  # noqa: E402

SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 64, "seq_length": 16}
WORDS = ("gpt_tiny", "model.num_layers=2", "model.seq_length=16", "dataset.seq_length=16", "validation.eval_iters=1",
         "train.global_batch_size=2", "train.micro_batch_size=1", "train.train_iters=2", "checkpoint.save_interval=2",
         "ddp.overlap_grad_reduce=false", "ddp.use_distributed_optimizer=false")  # fmt: skip


@pytest.fixture(autouse=True)
def _closed():
    yield
    destroy_global_state()
    assert not torch.distributed.is_initialized()


@pytest.fixture
def config():
    return ConfigContainer(**read_request(WORDS).config.sections())


def test_groups_are_closed_by_their_owner():
    with GPTModelProvider(**SIZES).initialize_model_parallel(seed=0):
        assert parallel_state.get_tensor_model_parallel_world_size() == 1
    assert not torch.distributed.is_initialized()
    assert not parallel_state.model_parallel_is_initialized()
    with temporary_distributed_context():
        assert torch.distributed.get_world_size() == 1
    assert not torch.distributed.is_initialized()


def test_groups_that_a_model_opened_are_closed_with_the_global_state():
    model = GPTModelProvider(**SIZES).provide_distributed_model(wrap_with_ddp=False)
    assert (len(model), torch.distributed.is_initialized()) == (1, True)
    destroy_global_state()
    assert not torch.distributed.is_initialized()


def test_groups_of_a_layout_that_does_not_fit_are_closed():
    with pytest.raises(RuntimeError, match="world_size"):
        GPTModelProvider(**SIZES, tensor_model_parallel_size=2).initialize_model_parallel()
    assert not torch.distributed.is_initialized()


def test_a_loop_of_the_user_has_the_losses_of_the_trainer(config, tmp_path):
    rows = []

    class Recorder:
        def on_train_step_end(self, context):
            rows.append({name: float(loss) for name, loss in context.loss_dict.items()}["lm loss"])

    pretrain(
        PlainContainer(**read_request(WORDS).config.sections()), callbacks=[Recorder()], out=tmp_path / "run"
    )
    state = GlobalState()
    state.cfg = config
    events = CallbackManager()
    fired = []
    events.register("on_data_init_start", lambda context: fired.append(len(context.model)))
    parts = setup(state, get_dataset_provider(config.dataset), callback_manager=events)
    assert (fired, get_num_microbatches(), parts.state is state) == ([1], 2, True)
    found = []
    for _ in range(2):
        for chunk in parts.model:
            chunk.zero_grad_buffer()
        parts.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=lambda data, model: forward_step(state, data, model),
            data_iterator=parts.train_data_iterator,
            model=parts.model,
            num_microbatches=2,
            seq_length=16,
            micro_batch_size=1,
            forward_only=False,
        )
        total, tokens = torch.stack([each["lm loss"] for each in losses]).sum(0)
        found.append(float(total / tokens))
        parts.optimizer.step()
        parts.scheduler.step(increment=2)
    assert found == pytest.approx(rows, rel=1e-5)


def test_the_arguments_of_a_setup(config):
    state = GlobalState()
    state.cfg = config
    with pytest.raises(UserCodeError, match=r"train_valid_test_datasets_provider: is not that of"):
        setup(state, print)
    fresh = ConfigContainer(**read_request(WORDS).config.sections())
    with pytest.raises(UserCodeError, match="cfg: its data-parallel size is not computed"):
        initialize_megatron(fresh)
    for name in ("skip_mpu_initialization", "get_embedding_ranks", "get_position_embedding_ranks"):
        with pytest.raises(UserCodeError, match=f"{name}: has no effect"):
            initialize_megatron(fresh, **{name: print})
    with pytest.raises(UserCodeError, match="scheduler_config: its lengths are not computed"):
        setup_optimizer(fresh.optimizer, fresh.scheduler, [torch.nn.Linear(1, 1)])


def test_an_optimizer_of_a_script_steps_at_the_rate_of_its_schedule(config):
    config.model, config.dataset = GPTModelProvider(**SIZES), None
    config.optimizer.lr, config.optimizer.min_lr = 0.5, 0.5
    config.scheduler.lr_warmup_iters, config.scheduler.lr_decay_style = 2, "constant"
    config.train.train_iters = 4
    config.validate()
    assert config.dataset is None
    initialize_megatron(config)
    set_jit_fusion_options(config.model, 1)
    model = get_model(config.model, DistributedDataParallelConfig())
    optimizer, scheduler = setup_optimizer(config.optimizer, config.scheduler, model)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step(increment=2)
    assert rates == [0.0, 0.25, 0.5]
    assert unwrap_model(model[0]).config.finalize_model_grads_func is not None


@pytest.mark.parametrize(
    "growth",
    [
        {"step_batch_size_schedule": f"0:4 {8 * SIZES['seq_length']}:8", "global_batch_size": None},
        {"rampup_batch_size": [4, 4, 8], "global_batch_size": 8},
    ],
)
def test_megatron_counts_the_microbatches_of_a_growing_batch(config, growth):
    config.model, config.dataset = GPTModelProvider(**SIZES), None
    config.train = TrainingConfig(train_iters=4, micro_batch_size=2, **growth)
    config.validate()
    initialize_megatron(config)
    counts = []
    for consumed in (0, 4, 8):
        update_num_microbatches(consumed, consistency_check=False)
        counts.append(get_num_microbatches())
    assert counts == [2, 2, 4]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, and a tensor of its last weights."""
    folder = tmp_path_factory.mktemp("run")
    kept = []

    class Keeper:
        def on_train_step_end(self, context):
            chunk = unwrap_model(context.model[0])
            kept[:] = [{name: tensor.clone() for name, tensor in chunk.named_parameters()}]

    pretrain(read_request(WORDS).config, callbacks=[Keeper()], out=folder)
    return folder, kept[0]


def test_a_model_of_a_checkpoint_has_the_weights_of_the_run_and_is_saved(run, tmp_path):
    folder, right = run
    section, arguments = load_model_config(str(folder))
    assert (type(section), section.hidden_size, arguments) == (
        GPTModelProvider,
        right["decoder.final_layernorm.weight"].numel(),
        None,
    )
    [chunk] = load_megatron_model(str(folder / "checkpoints"), model_type="gpt", use_cpu_init=True)
    found = dict(unwrap_model(chunk).named_parameters())
    assert all(torch.equal(found[name].float(), right[name].float()) for name in right)
    assert not torch.distributed.is_initialized()
    tensors = build_and_load_model(str(folder), section, return_state_dict=True, skip_temp_dist_context=False)
    assert torch.equal(tensors["decoder.final_layernorm.weight"], found["decoder.final_layernorm.weight"])
    with temporary_distributed_context():
        model = build_and_load_model(str(folder), load_model_config(str(folder))[0])
        save_megatron_model(model, tmp_path / "weights")
        [again] = load_megatron_model(
            str(tmp_path / "weights"), mp_overrides={"tensor_model_parallel_size": 1}
        )
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model[0].parameters(), strict=True))


def test_a_tokenizer_of_a_checkpoint(run):
    folder, _ = run
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.decode(tokenizer.encode("a word")) == "a word"
    numbers = {"tokenizer_type": "NullTokenizer", "tokenizer_model": None, "vocab_size": 9}
    assert load_tokenizer(str(folder), **numbers).vocab_size == 9
    with pytest.raises(AttributeError, match="colour"):
        load_tokenizer(str(folder), colour="red")


def test_arguments_of_checkpoints_without_effect_are_errors(run):
    folder, _ = run
    section, _ = load_model_config(str(folder))
    with pytest.raises(ValueError, match="megatron_args: is not supported"):
        build_and_load_model(str(folder), section, megatron_args=argparse.Namespace())
    for wrong in ("mamba", "bert"):
        with pytest.raises(ValueError, match=f"model_type: '{wrong}' is not that of"):
            build_and_load_model(str(folder), section, wrong)
    with pytest.raises(ValueError, match="model: was not built from a section"):
        save_megatron_model([torch.nn.Linear(1, 1)], folder / "none")
    with temporary_distributed_context():
        model = GPTModelProvider(**SIZES).provide_distributed_model(wrap_with_ddp=False)
        for wrong in (
            {"ckpt_format": "fsdp_dtensor"},
            {"low_memory_save": True},
            {"hf_tokenizer_kwargs": {"use_fast": True}},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                save_megatron_model(model, folder / "none", **wrong)
    assert not (folder / "none").exists()


def test_floating_point_types():
    names = ("bf16", "bfloat16", "torch.bfloat16", "bf16-mixed", "fp16", "16", "fp32")
    types = [torch.bfloat16] * 4 + [torch.float16] * 2 + [torch.float32]
    assert [dtype_from_str(name) for name in names] == types
    with pytest.raises(ValueError, match="'int7': unsupported dtype"):
        dtype_from_str("int7")
    configs = [argparse.Namespace(torch_dtype=each) for each in (torch.float16, "bfloat16")]
    assert [dtype_from_hf(each) for each in configs] == [torch.float16, torch.bfloat16]
    sections = [
        argparse.Namespace(bf16=bf16, fp16=fp16)
        for bf16, fp16 in ((True, False), (False, True), (False, False))
    ]
    assert [torch_dtype_from_mcore_config(each) for each in sections] == [
        torch.bfloat16,
        torch.float16,
        torch.float32,
    ]


def test_the_operations_of_a_batch_are_those_of_a_formula(config):
    config.model = GPTModelProvider(**SIZES, add_bias_linear=False)
    linear = 12 * 32 * 32  # QKV 3hh, projection hh, MLP 2*4hh
    attention = 16 * 32  # scores and values over half of 16 positions
    per_token = 6 * (2 * (linear + attention) + 32 * 64)
    assert num_floating_point_operations(config, batch_size=3) == 3 * 16 * per_token
    two_documents = num_floating_point_operations(config, seqlen_sum=16, seqlen_squared_sum=2 * 8**2)
    assert two_documents == 16 * 6 * (2 * (linear + attention / 2) + 32 * 64)


def test_overrides_by_omegaconf_change_only_what_differs(config):
    content, excluded = create_omegaconf_dict_config(config)
    content = OmegaConf.merge(content, {"train": {"train_iters": 7}})
    content = parse_hydra_overrides(content, ["model.num_layers=3", "+env_vars.A=b", "checkpoint.save=null"])
    before = config.to_dict()
    apply_overrides(config, OmegaConf.to_container(content, resolve=True), excluded)
    after = config.to_dict()
    assert (config.train.train_iters, config.model.num_layers, config.env_vars) == (7, 3, {"A": "b"})
    before["train"]["train_iters"], before["model"]["num_layers"], before["env_vars"] = 7, 3, {"A": "b"}
    assert after == before
    with pytest.raises(OverrideError, match="deletes a field"):
        parse_hydra_overrides(content, ["~train.seed"])


@pytest.mark.parametrize("name", DATASET_PRESETS)
def test_a_dataset_of_a_name_has_the_length_of_the_model(config, name):
    section = build_dataset_config(config, name)
    kind = "pretrain" if name in ("mock", "megatron-indexed") else "finetune"
    assert (section.seq_length, dataset_train_mode(section)) == (16, kind)


def test_an_unknown_dataset_names_those_that_are_here(config):
    with pytest.raises(ValueError, match=r"'cord-v2' is not here\. Use one of mock"):
        build_dataset_config(config, "cord-v2")


@pytest.mark.parametrize(
    ("command", "name"),
    [("/a/train_qwen.py", "train_qwen"), ("-c", "run"), ("/a/tool/__main__.py", "run"), ("", "run")],
)
def test_a_run_has_the_name_of_its_script(monkeypatch, command, name):
    called = []
    for function in ("pretrain", "finetune"):
        monkeypatch.setattr(mb_trainer, function, lambda *_, **options: called.append(options["name"]))
    monkeypatch.setattr("sys.argv", [command])
    for function in (scripts.pretrain, scripts.finetune):
        function(None)
        function(None, name="mine")
    assert called == [name, "mine"] * 2


def test_environment_logging_and_addresses(config, monkeypatch):
    config.env_vars = {"SET_BEFORE": "recipe", "SET_HERE": "recipe"}
    monkeypatch.setattr(os, "environ", {"SET_BEFORE": "user", "MEGATRON_LOGGING_LEVEL": "loud"})
    apply_environment_variables(config)
    assert (os.environ["SET_BEFORE"], os.environ["SET_HERE"]) == ("user", "recipe")
    with pytest.raises(MetricsError, match="MEGATRON_LOGGING_LEVEL"):
        setup_logging()
    safe, reason = safe_url.is_safe_public_http_url("https://example.com/cat.png")
    assert (safe, "images are not loaded" in reason) == (False, True)
    with pytest.raises(NotImplementedError, match="name a file"):
        safe_url.safe_url_open("https://example.com/cat.png")
