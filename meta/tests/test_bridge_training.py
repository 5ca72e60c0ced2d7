"""Functions of Megatron-Bridge's training package, called as its users' scripts call them, on one process."""

import math
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

from megatron.core.energy_monitor import EnergyMonitor  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.rerun_state_machine import get_rerun_state_machine  # noqa: E402
from megatron.core.timers import Timers  # noqa: E402
from megatron.core.utils import StragglerDetector  # noqa: E402

from mb_checkpoint import CheckpointNotFoundError, SavedCheckpoint  # noqa: E402
from mb_checkpoint.errors import CheckpointReadError  # noqa: E402
from mb_config import ConfigError  # noqa: E402
from mb_launch import World  # noqa: E402
from mb_loop import CallbackManager, NonFiniteLossError  # noqa: E402
from mb_schema.value_types import FieldTypeError  # noqa: E402
from mb_trainer import pretrain  # noqa: E402
from mb_trainer.bridge import AutoBridge  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402
from mb_trainer.bridge.training.callbacks import VALID_EVENTS, should_fire  # noqa: E402
from mb_trainer.bridge.training.checkpointing import (  # noqa: E402
    find_checkpoint_rank_0,
    get_checkpoint_name,
    init_checkpointing_context,
    load_checkpoint,
    maybe_finalize_async_save,
    save_checkpoint,
)
from mb_trainer.bridge.training.comm_overlap import CommOverlapConfig  # noqa: E402
from mb_trainer.bridge.training.config import ConfigContainer  # noqa: E402
from mb_trainer.bridge.training.eval import evaluate, evaluate_and_print_results  # noqa: E402
from mb_trainer.bridge.training.gpt_step import get_batch  # noqa: E402
from mb_trainer.bridge.training.losses import (  # noqa: E402
    create_masked_next_token_loss_function,
    masked_next_token_loss,
)
from mb_trainer.bridge.training.state import GlobalState, TrainState  # noqa: E402
from mb_trainer.bridge.training.tokenizers.tokenizer import build_tokenizer  # noqa: E402
from mb_trainer.bridge.training.utils.checkpoint_utils import (  # noqa: E402
    checkpoint_exists,
    get_checkpoint_tracker_filename,
    get_checkpoint_train_state_filename,
    get_hf_model_id_from_checkpoint,
    read_run_config,
    read_train_state,
)
from mb_trainer.bridge.training.utils.packed_seq_utils import get_packed_seq_params  # noqa: E402
from mb_trainer.bridge.training.utils.pg_utils import get_pg_collection  # noqa: E402
from mb_trainer.errors import UserCodeError  # noqa: E402
from mb_trainer.registry import REGISTRY  # noqa: E402
from mb_trainer.requests import read_request  # noqa: E402
from mb_trainer.run.model import build_model, model_groups, select_layers  # noqa: E402
from mb_trainer.run.preflight import resolve_and_check  # noqa: E402
from mb_trainer.run.user_code import UserCode  # noqa: E402

CPU = torch.device("cpu")
WORDS = ("gpt_tiny", "model.num_layers=2", "model.seq_length=16", "dataset.seq_length=16", "validation.eval_iters=3",
         "train.global_batch_size=2", "train.micro_batch_size=1")  # fmt: skip
NUMBERS = (
    "tokenizer.tokenizer_type=NullTokenizer",
    "tokenizer.tokenizer_model=null",
    "tokenizer.vocab_size=63",
)


def resolved(*words, tokens=NUMBERS):
    request = read_request([*WORDS, *tokens, *words])
    resolve_and_check(request.config, world_size=1, provenance=request.provenance)
    return request.config


def built(config, groups):
    return build_model(
        config,
        groups=groups,
        layers=select_layers(config.model, CPU),
        tokenizer_vocab_size=63,
        device=CPU,
        code=UserCode(),
    )


def batches(seed=0):
    """Yield microbatches of random tokens, of which the mask selects about half."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(0, 60, (1, 17), generator=generator)
        mask = torch.randint(0, 2, (1, 16), generator=generator).float()
        yield {
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:],
            "loss_mask": mask,
            "position_ids": torch.arange(16)[None],
        }


def forward_step(state: GlobalState, data_iterator, model, return_schedule_plan=False):
    """A forward step in the style of Megatron-Bridge's documentation."""
    timers, straggler_timer = state.timers, state.straggler_timer
    timers("batch-generator", log_level=2).start()
    with straggler_timer(bdata=True):
        tokens, labels, loss_mask, attention_mask, position_ids, packing = get_batch(
            data_iterator, state.cfg, False, pg_collection=get_pg_collection(model)
        )
    timers("batch-generator").stop()
    assert packing is None
    with straggler_timer:
        output = model(tokens, position_ids, attention_mask, labels=labels)
    check = state.cfg.rerun_state_machine.check_for_nan_in_loss
    return output, create_masked_next_token_loss_function(loss_mask, check, False)


def with_non_loss_data(state: GlobalState, data_iterator, model):
    output, loss_function = forward_step(state, data_iterator, model)

    def loss_or_shape(output, non_loss_data=False):
        return tuple(output.shape) if non_loss_data else loss_function(output)

    return output, loss_or_shape


@pytest.fixture
def training(tmp_path):
    config = resolved(f"checkpoint.save={tmp_path / 'ckpt'}", f"checkpoint.load={tmp_path / 'ckpt'}")
    with model_groups(World(), config, device=CPU) as groups:
        state = GlobalState()
        state.cfg = config
        yield state, built(config, groups), groups


def mean_loss(chunk, number):
    """Return the loss of the first microbatches from the logits alone: cross entropy over the selected tokens."""
    chunk.eval()
    total = count = 0
    with torch.no_grad():
        for batch, _ in zip(batches(), range(number), strict=False):
            logits = chunk(batch["tokens"], batch["position_ids"], None).float()
            each = torch.nn.functional.cross_entropy(logits[0], batch["labels"][0], reduction="none")
            total += float((each * batch["loss_mask"][0]).sum())
            count += float(batch["loss_mask"].sum())
    chunk.train()
    return total / count


def test_an_evaluation_has_the_mean_loss_of_its_batches(training, capsys, tmp_path):
    state, model, _groups = training
    right = mean_loss(model.chunks[0], 6)
    events = []
    callbacks = CallbackManager()
    callbacks.user_state["mine"] = 1
    callbacks.register("on_eval_step_end", lambda context: events.append(context.user_state["mine"]))
    losses, data, stopped = evaluate(
        state, forward_step, batches(), model.chunks, None, state.cfg, verbose=True,
        non_loss_data_func=lambda chunks: len(chunks), callback_manager=callbacks,
    )  # fmt: skip
    assert losses["lm loss"].item() == pytest.approx(right, rel=1e-5)
    assert (data, stopped, events, model.chunks[0].training) == (1, False, [1, 1, 1], True)
    assert state.train_state.consumed_valid_samples == 6
    assert capsys.readouterr().out.splitlines() == [
        "Evaluating on 6 samples",
        *(f"Evaluating iter {number}/3" for number in (1, 2, 3)),
    ]


def test_an_evaluation_is_printed_and_written_to_the_loggers(training, capsys, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    state, model, _groups = training
    right = mean_loss(model.chunks[0], 6)
    state.cfg.logger.tensorboard_dir = str(tmp_path / "tb")
    state.cfg.logger.log_validation_ppl_to_tensorboard = True
    state.train_state.step, state.train_state.consumed_train_samples = 7, 14
    logged, processed = [], []
    state.wandb_logger = type("Wandb", (), {"log": lambda _self, *points: logged.append(points)})()
    losses = evaluate_and_print_results(
        state, "iteration 7", with_non_loss_data, batches(), model.chunks, state.cfg,
        process_non_loss_data_func=lambda *arguments: processed.append(arguments), is_test=False,
    )  # fmt: skip
    loss = losses["lm loss"].item()
    assert loss == pytest.approx(right, rel=1e-5)
    line = (
        f" validation loss at iteration 7 | lm loss value: {loss:.6E} | lm loss PPL: {math.exp(loss):.6E} | "
    )
    assert capsys.readouterr().out.splitlines() == ["-" * (len(line) + 1), line, "-" * (len(line) + 1)]
    assert processed == [([(1, 16), (1, 16)], 7, state.tensorboard_logger)]
    state.tensorboard_logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    values = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    near = partial(pytest.approx, rel=1e-5)
    assert values == {
        "lm loss validation": [(7, near(loss))],
        "lm loss validation vs samples": [(14, near(loss))],
        "lm loss validation ppl": [(7, near(math.exp(loss)))],
        "lm loss validation ppl vs samples": [(14, near(math.exp(loss)))],
    }
    assert logged == [({"lm loss validation": near(loss), "lm loss validation ppl": near(math.exp(loss))}, 7)]


def test_an_evaluation_ends_at_the_duration_limit(training):
    state, model, _groups = training
    state.cfg.train.exit_duration_in_mins, state.start_time = 1.0, 0.0
    arguments = (forward_step, batches(), model.chunks)
    assert evaluate(state, *arguments, None, state.cfg) == (None, None, True)
    assert evaluate_and_print_results(state, "x", *arguments, state.cfg) is None


def test_the_settings_of_an_evaluation_are_those_of_the_state(training):
    state, model, _groups = training
    with pytest.raises(UserCodeError, match="config: is another object"):
        evaluate(state, forward_step, batches(), model.chunks, None, resolved())


def parameters(chunk):
    return {name: parameter.detach().clone() for name, parameter in chunk.named_parameters()}


def test_a_saved_checkpoint_is_loaded_into_another_model(training, tmp_path, capsys):
    state, model, groups = training
    state.train_state.step, state.train_state.consumed_train_samples = 4, 8
    fired = []
    callbacks = CallbackManager()
    callbacks.register("on_checkpoint_save", lambda context: fired.append(context.saved_step))
    saved = save_checkpoint(
        state, model.chunks, model.optimizer, model.scheduler, 5, callback_manager=callbacks
    )
    right = parameters(model.chunks[0])
    root = str(tmp_path / "ckpt")
    assert isinstance(saved, SavedCheckpoint)
    assert (fired, str(saved.path)) == ([4], get_checkpoint_name(root, 4))
    assert (checkpoint_exists(root), find_checkpoint_rank_0(root, 4)) == (True, str(saved.path))
    assert Path(get_checkpoint_tracker_filename(root)).read_text().strip() == "4"
    counters = read_train_state(get_checkpoint_train_state_filename(root, prefix="latest"))
    assert counters == TrainState(step=4, consumed_train_samples=8, floating_point_operations_so_far=5)
    with torch.no_grad():
        for parameter in model.chunks[0].parameters():
            parameter.zero_()
    fresh = GlobalState(cfg=state.cfg)
    context = init_checkpointing_context(state.cfg.checkpoint)
    loaded = load_checkpoint(
        fresh,
        model.chunks,
        model.optimizer,
        model.scheduler,
        checkpointing_context=context,
        pg_collection=groups,
    )
    assert (loaded, fresh.train_state.step, fresh.train_state.consumed_train_samples) == ((4, 5), 4, 8)
    assert fresh.checkpoint_manager is context["checkpoint_manager"]
    found = parameters(model.chunks[0])
    assert all(torch.equal(found[name], right[name]) for name in right)
    assert "step 4" in capsys.readouterr().out


def test_a_background_save_is_finished_by_the_caller(training, tmp_path):
    state, model, _groups = training
    state.cfg.checkpoint.async_save = True
    state.train_state.step = 3
    save_checkpoint(state, model.chunks, model.optimizer, model.scheduler, 0)
    maybe_finalize_async_save(state, state.cfg.checkpoint, blocking=True, terminate=True)
    assert find_checkpoint_rank_0(str(tmp_path / "ckpt"), 3) is not None
    with pytest.raises(UserCodeError, match="ckpt_cfg: is another section"):
        maybe_finalize_async_save(state, resolved().checkpoint)


def test_weights_without_a_checkpoint_remain(training):
    state, model, _groups = training
    assert load_checkpoint(state, model.chunks, None, None) == (0, 0)


@pytest.mark.parametrize(
    "argument",
    ["pipeline_rank", "tensor_rank", "preprocess_common_state_dict_fn", "prebuilt_state_dict", "module_name"],
)
def test_an_argument_of_a_save_without_effect_is_an_error(training, argument):
    state, model, _groups = training
    with pytest.raises(UserCodeError, match=f"{argument}: has no effect, because"):
        save_checkpoint(state, model.chunks, None, None, 0, **{argument: {"a": 1}})


def test_an_argument_of_a_load_without_effect_is_an_error(training):
    state, model, _groups = training
    with pytest.raises(UserCodeError, match="module_name: has no effect"):
        load_checkpoint(state, model.chunks, None, None, module_name="language")
    with pytest.raises(UserCodeError, match=r"checkpointing_context: has no manager \(save_strategy\)"):
        load_checkpoint(state, model.chunks, None, None, checkpointing_context={"save_strategy": 1})


def test_a_forward_step_of_their_style_trains_and_its_state_has_timers_and_loggers(tmp_path):
    config = resolved("train.train_iters=2", "validation.eval_iters=0", "checkpoint.save=null", tokens=())
    seen = []

    class Reads:
        def on_train_step_end(self, context):
            state = context.state
            state.tensorboard_logger.add_scalar("mine", 3.0, state.train_state.step)
            seen.append((type(state), type(state.timers), state.tokenizer.vocab_size))

    config.logger.tensorboard_dir = str(tmp_path / "tb")
    outcome = pretrain(config, forward_step, callbacks=[Reads()], out=tmp_path / "run")
    assert outcome.step == 2
    assert seen == [(GlobalState, Timers, 4096)] * 2
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Scalars("mine")] == [1, 2]


def test_files_of_checkpoints(tmp_path):
    (tmp_path / "iter_0000002").mkdir()
    assert get_hf_model_id_from_checkpoint(tmp_path) is None
    (tmp_path / "iter_0000002" / "run_config.yaml").write_text("model:\n  hf_model_id: meta/one\n")
    assert get_hf_model_id_from_checkpoint(tmp_path) == "meta/one"
    assert AutoBridge.get_hf_model_id_from_checkpoint(tmp_path) == "meta/one"
    assert read_run_config(str(tmp_path / "iter_0000002" / "run_config.yaml")) == {
        "model": {"hf_model_id": "meta/one"}
    }
    with pytest.raises(CheckpointNotFoundError, match="no such folder"):
        get_hf_model_id_from_checkpoint(tmp_path / "missing")
    with pytest.raises(CheckpointReadError, match=r"train_state.pt: could not be read"):
        read_train_state(str(tmp_path / "train_state.pt"))


class Train:
    exit_signal_handler, exit_signal = True, signal.SIGUSR2


class Config:
    train = Train()


def test_a_new_state_has_counters_and_the_time_and_handles_the_signal_once_it_has_a_configuration():
    previous = signal.getsignal(signal.SIGUSR2)
    state = GlobalState()
    assert (state.cfg, state.train_state, state.rank_monitor_client) == (None, TrainState(), None)
    assert isinstance(state.start_time, float)
    state.cfg = Config()
    try:
        assert signal.getsignal(signal.SIGUSR2) is not previous
        signal.raise_signal(signal.SIGUSR2)
        assert state.signal_handler.signals_received() == [True]
    finally:
        state.reset_for_restart()
    assert signal.getsignal(signal.SIGUSR2) is previous


def test_loggers_of_a_state_are_none_until_it_has_a_configuration(tmp_path):
    state = GlobalState()
    loggers = ("tensorboard_logger", "wandb_logger", "mlflow_logger", "comet_logger", "energy_monitor")
    assert [getattr(state, name) for name in loggers] == [None] * 5
    for name in ("tokenizer", "timers", "signal_handler"):
        with pytest.raises(AttributeError, match=r"state.cfg: is None"):
            getattr(state, name)
    state.cfg = resolved("logger.log_energy=true", f"logger.tensorboard_dir={tmp_path}")
    assert (type(state.energy_monitor), type(state.timers)) == (EnergyMonitor, Timers)
    state.tensorboard_logger.close()


def test_what_a_state_makes_is_kept_until_a_restart(tmp_path):
    config = resolved("logger.log_energy=true", f"logger.tensorboard_dir={tmp_path}")
    state = GlobalState()
    state.cfg = config
    assert (state.signal_handler, state.wandb_logger, state.mlflow_logger, state.comet_logger) == (None,) * 4
    kinds = (type(state.timers), type(state.straggler_timer), type(state.energy_monitor))
    assert kinds == (Timers, StragglerDetector, EnergyMonitor)
    made = (state.timers, state.tensorboard_logger, state.tokenizer)
    assert made == (state.timers, state.tensorboard_logger, state.tokenizer)
    state.train_state.step = 5
    state.reset_for_restart()
    again = (state.timers, state.tensorboard_logger, state.tokenizer)
    assert [old is new for old, new in zip(made, again, strict=True)] == [False, False, True]
    assert (state.cfg, state.train_state.step) == (config, 0)
    state.tensorboard_logger.close()


def test_loggers_are_those_of_the_last_rank(monkeypatch, tmp_path):
    config = resolved(f"logger.tensorboard_dir={tmp_path}")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    state = GlobalState(cfg=config)
    assert (state.tensorboard_logger, state.wandb_logger, state.mlflow_logger, state.comet_logger) == (
        None,
    ) * 4


def test_the_loss_is_the_sum_over_the_tokens_of_the_mask():
    losses, mask = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 0], [1, 1]])
    loss, tokens, logged = masked_next_token_loss(mask, losses)
    assert (loss.item(), tokens.item(), tokens.dtype) == (8.0, 3, torch.int)
    assert logged["lm loss"].tolist() == [8.0, 3.0]
    paired, tokens, _logged = masked_next_token_loss(mask, (losses, torch.ones(2, 2)))
    assert (paired.item(), tokens.item()) == (10.0, 4)


def test_the_checks_of_a_loss_are_those_of_the_arguments():
    bad, mask = torch.tensor([[math.nan]]), torch.ones(1, 1)
    with pytest.raises(NonFiniteLossError):
        masked_next_token_loss(mask, bad)
    loss, _tokens, _logged = masked_next_token_loss(mask, bad, check_for_nan_in_loss=False)
    assert math.isnan(loss)
    machine = get_rerun_state_machine()
    for _ in range(120):  # the first hundred are measured
        masked_next_token_loss(mask, torch.ones(1, 1), check_for_spiky_loss=True)
    assert machine.is_unexpectedly_large(torch.tensor(11.0), threshold=10.0, context="loss")
    assert not machine.is_unexpectedly_large(torch.tensor(9.0), threshold=10.0, context="loss")


class Group:
    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


def groups_of(stage, stages):
    return ProcessGroupCollection(pp=Group(stage, stages), cp=Group(0, 1))


@pytest.mark.parametrize(
    ("stage", "chunk", "keeps"),
    [(0, None, "tp"), (1, None, ""), (2, None, "lm"), (0, 1, ""), (2, 0, ""), (2, 1, "lm"), (0, 0, "tp")],
)
def test_a_stage_reads_what_it_needs(stage, chunk, keeps):
    config = resolved()
    config.model.virtual_pipeline_model_parallel_size = None if chunk is None else 2
    batch = get_batch(batches(), config, pg_collection=groups_of(stage, 3), vp_stage=chunk)
    tokens, labels, mask, attention, positions, packing = batch
    found = {"t": tokens, "l": labels, "m": mask, "p": positions}
    assert "".join(name for name, value in found.items() if value is not None) == "".join(
        name for name in "tlmp" if name in keeps
    )
    assert (attention, packing) == (None, None)


def test_the_last_stage_reads_the_inputs_for_several_tokens():
    config = resolved()
    tokens, labels, *_ = get_batch(batches(), config, True, pg_collection=groups_of(1, 2))
    right = next(batches())
    assert torch.equal(tokens, right["tokens"])
    assert torch.equal(labels, right["labels"])
    config.model.pipeline_model_parallel_layout = "E|tL"
    with pytest.raises(UserCodeError, match="pipeline_model_parallel_layout, which it does not read"):
        get_batch(batches(), config, True, pg_collection=groups_of(1, 2))


def test_boundaries_of_packed_sequences_reach_megatron():
    config = resolved()
    config.dataset = type("Packed", (), {"is_packed": True, "is_padded": False})()
    packed = {**next(batches()), "cu_seqlens": torch.tensor([[0, 5, 16]]), "max_seqlen": torch.tensor([11])}
    *_rest, metadata = get_batch(iter([packed]), config, pg_collection=groups_of(0, 1))
    found = get_packed_seq_params(metadata)
    assert (found.cu_seqlens_q.tolist(), found.max_seqlen_kv, found.qkv_format) == ([0, 5, 16], 11, "thd")


def test_boundaries_of_a_batch_of_the_user_reach_megatron():
    padded = torch.tensor([[0, 8, 16, -1]], dtype=torch.int32)
    actual = torch.tensor([[0, 5, 14, -1]], dtype=torch.int32)
    found = get_packed_seq_params({"cu_seqlens": padded, "max_seqlen": torch.tensor([8])})
    assert (found.qkv_format, found.max_seqlen_q, found.max_seqlen_kv) == ("thd", 8, 8)
    assert found.cu_seqlens_q_padded is None
    assert found.cu_seqlens_q.tolist() == found.cu_seqlens_kv.tolist() == [0, 8, 16]
    batch = {"cu_seqlens": padded, "cu_seqlens_argmin": torch.tensor(3), "cu_seqlens_unpadded": actual}
    found = get_packed_seq_params(batch)
    assert (found.cu_seqlens_q.tolist(), found.cu_seqlens_kv_padded.tolist()) == ([0, 5, 14], [0, 8, 16])
    found = get_packed_seq_params({"cu_seqlens_q": actual[:, :3], "max_seqlen_q": 9, "total_tokens": 16})
    assert (found.cu_seqlens_kv.tolist(), found.max_seqlen_kv) == ([0, 5, 14], 9)
    assert found.seq_idx.tolist() == [[0] * 5 + [1] * 9 + [2] * 2]
    with pytest.raises(UserCodeError, match=r"no cu_seqlens \(tokens\)"):
        get_packed_seq_params({"tokens": padded})


@dataclass
class MyContainer(ConfigContainer):
    """A container of the user with a field of its own."""

    note: str = "none"


def test_a_container_computes_what_follows_from_its_settings_before_it_checks_them(monkeypatch, tmp_path):
    config = MyContainer(**read_request([*WORDS, *NUMBERS]).config.sections(), note="mine")
    config.train.global_batch_size, config.train.train_iters = 8, 100
    config.scheduler.lr_warmup_fraction, config.scheduler.lr_warmup_iters = None, 10
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert [problem for problem in config.validate() if problem.severity == "error"] == []
    steps = (config.scheduler.lr_decay_steps, config.scheduler.lr_warmup_steps)
    assert (config.data_parallel_size, steps) == (4, (100 * 8, 10 * 8))  # Megatron counts them in sequences
    before = config.to_dict()
    config.validate(world_size=4)
    assert config.to_dict() == before
    config.train.global_batch_size = 6
    with pytest.raises(ConfigError, match=r"train.global_batch_size: 6 is not a multiple of 4"):
        config.validate()


def test_a_container_of_the_user_is_written_and_read(tmp_path, capsys):
    config = MyContainer(**resolved().sections(), note="mine")
    config.to_yaml(tmp_path / "config.yaml")
    assert MyContainer.from_yaml(tmp_path / "config.yaml", REGISTRY.classes).note == "mine"
    config.print_yaml()
    assert yaml.safe_load(capsys.readouterr().out)["note"] == "mine"


def test_an_event_is_fired_if_there_is_a_listener():
    manager = CallbackManager()
    assert (should_fire(None, "on_eval_start"), should_fire(manager, "on_eval_start")) == (False, False)
    manager.register("on_eval_start", print)
    assert (should_fire(manager, "on_eval_start"), manager.events == VALID_EVENTS) == (True, True)


def test_a_tokenizer_is_built_of_its_section():
    assert build_tokenizer(resolved().tokenizer).vocab_size == 63


def test_an_overlap_section_is_checked_on_its_own():
    CommOverlapConfig(tp_comm_overlap=True).finalize()
    with pytest.raises(FieldTypeError, match=r"comm_overlap.tp_comm_overlap"):
        CommOverlapConfig(tp_comm_overlap="yes").finalize()


def test_a_configuration_with_a_provider_is_written_and_read(tmp_path):
    config = ConfigContainer(**resolved().sections())
    config.model = GPTModelProvider(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=16)
    config.to_yaml(tmp_path / "config.yaml")
    read = ConfigContainer.from_yaml(tmp_path / "config.yaml")
    assert (type(read.model), read.to_dict()) == (GPTModelProvider, config.to_dict())
