"""Rules on vision-language models with per-module parallelism; they apply only to different layouts."""

from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule

_LAYOUT = (
    "model.language_rank_offset",
    "model.vision_tensor_model_parallel_size",
    "model.tensor_model_parallel_size",
)
REQUIRED_SETTINGS: Mapping[str, tuple[object, object]] = {
    "sequence_parallel": (False, True),
    "context_parallel_size": (1, 2),
    "num_moe_experts": (None, 8),
    "bf16": (False, True),
    "fp16": (False, True),
    "fp8": (None, "e4m3"),
    "fp4": (None, "e2m1"),
}
"""Fields of the section, with the only value that per-module parallelism supports and an example of another."""

NO_OVERLAP = "the overlapped exchange of two modules is never started in time"
LOGITS_OF_ONE_MODEL = "attention logits are compared over the groups of one model"
EXCHANGE: Mapping[str, str] = {
    "ddp.overlap_grad_reduce": NO_OVERLAP,
    "ddp.overlap_param_gather": NO_OVERLAP,
    "ddp.use_distributed_optimizer": "both modules would store the shards of their optimizers under the same names",
    "model.qk_clip": LOGITS_OF_ONE_MODEL,
    "model.log_max_attention_logit": LOGITS_OF_ONE_MODEL,
}
"""Switches of the wrapper and of communication, and the reason why they are off."""

PROCESS_WIDE: Mapping[str, tuple[object, object]] = {
    "dist.use_torch_fsdp2": (False, True),
    "dist.use_megatron_fsdp": (False, True),
    "ddp.use_megatron_fsdp": (False, True),
    "dist.use_tp_pp_dp_mapping": (False, True),
    "dist.use_sharp": (False, True),
    "dist.high_priority_stream_groups": ([], ["ep"]),
    "dist.nccl_communicator_config_path": (None, "nccl.yaml"),
    "ddp.num_distributed_optimizer_instances": (1, 2),
    "rng.te_rng_tracker": (False, True),
    "rng.inference_rng_tracker": (False, True),
    "rng.data_parallel_random_init": (False, True),
}
"""Settings of Megatron's process-wide groups, wrappers and random states, with the only supported value and an example
of another.
"""


def has_layouts(offset: int | None, vision_tp: int | None, tp: int | None) -> bool:
    """Return whether encoder and language model have different layouts; `offset` is None for other families."""
    return offset is not None and (offset != 0 or vision_tp not in (None, tp))


def stored_optimizer_error(model: object, changed: Mapping[str, tuple[Any, Any]]) -> str | None:
    """Return why the optimizer state of a previous run cannot be loaded, or None.

    The optimizer of modules with layouts of their own is stored per module.

    Args:
        model: Section of the run that resumes; of any family.
        changed: Dotted path -> (previous, current) of the settings that differ from the previous run.
    """
    current = [getattr(model, path.removeprefix("model."), None) for path in _LAYOUT]
    previous = [
        changed[path][0] if path in changed else value for path, value in zip(_LAYOUT, current, strict=True)
    ]
    before, now = (
        "modules with layouts of their own" if has_layouts(*layout) else "one model"
        for layout in (previous, current)
    )
    if before == now:
        return None
    return (
        f"holds the optimizer of {before}, and this run trains {now}, because the layout of modules was changed; the "
        "two are stored differently. Load its weights in another folder (--out and checkpoint.pretrained_checkpoint), "
        "or resume with checkpoint.load_optim=false."
    )


def module_layout_error(offset: int, vision_tp: int, tp: int, world: int) -> str | None:
    """Return the reason why the modules do not fit on that many processes, or None."""
    if offset < 0 or min(vision_tp, tp) < 1:
        return f"is {offset} with tensor parallelism of {vision_tp} and {tp}"
    if offset >= world:
        return f"is {offset} of {world} processes, so that no rank is left for the language model"
    vision, language = offset or world, world - offset
    for name, ranks, size in (("encoder", vision, vision_tp), ("language model", language, tp)):
        if ranks % size:
            return f"leaves the {name} {ranks} ranks, which {size} tensor-parallel ranks do not divide"
    sizes = sorted((vision // vision_tp, language // tp))
    if sizes[1] % sizes[0]:
        return f"leads to {vision // vision_tp} replicas of the encoder and {language // tp} of the language model"
    return None


def unsupported_settings(values: Sequence[object]) -> str | None:
    """Return the fields of `REQUIRED_SETTINGS` with another value, of values in its order; None: there is none."""
    problems = [
        f"{name}={value}"
        for (name, (supported, _)), value in zip(REQUIRED_SETTINGS.items(), values, strict=True)
        if value != supported
    ]
    return ", ".join(problems) or None


def _layout_rule(
    id: str, path: str, test: Callable[[Any], str | None], *, fails: object, passes: object, **texts: Any
) -> Rule:
    """Return a rule on one field that applies only if encoder and language model have different layouts."""

    def tested(
        value: object,
        language_rank_offset: int | None,
        vision_tensor_model_parallel_size: int | None,
        tp: int | None,
    ) -> str | None:
        different = has_layouts(language_rank_offset, vision_tensor_model_parallel_size, tp)
        return test(value) if different else None

    return model_rule(
        id,
        paths={"value": path},
        fails={"value": fails, "language_rank_offset": 1, "tp": 1},
        passes={"value": passes},
        **texts,
    )(tested)


def _must_be(supported: object) -> Callable[[object], str | None]:
    """Return a test that rejects a set value other than the supported one."""
    return lambda value: f"is {value}" if value is not None and value != supported else None


@model_rule(
    "M16",
    why="each module is complete on its ranks, in replicas that each take the images of complete replicas of "
    "the other",
    fix="Let the tensor-parallel sizes divide the ranks of their modules, and one number of replicas the other.",
    fails={"language_rank_offset": 1, "tp": 1, "all_processes": 1},
    passes={"all_processes": 2},
)
def _modules_do_not_fit_on_ranks(
    language_rank_offset, vision_tensor_model_parallel_size, tp, *, all_processes
):
    if not has_layouts(language_rank_offset, vision_tensor_model_parallel_size, tp) or all_processes is None:
        return None
    return module_layout_error(
        language_rank_offset, vision_tensor_model_parallel_size or tp, tp, all_processes
    )


def _rows_not_divided_by_replicas(
    rows, language_rank_offset, vision_tensor_model_parallel_size, tp, *, all_processes
):
    offset, vision_tp = language_rank_offset, vision_tensor_model_parallel_size
    if rows is None or all_processes is None or not has_layouts(offset, vision_tp, tp):
        return None
    if module_layout_error(offset, vision_tp or tp, tp, all_processes) is not None:
        return None
    parts = max((offset or all_processes) // (vision_tp or tp), (all_processes - offset) // tp)
    return f"{rows} sequences cannot be divided into {parts} equal parts" if rows % parts else None


RULES: tuple[Rule, ...] = (
    _modules_do_not_fit_on_ranks,
    _layout_rule(
        "M17",
        "model.calculate_per_token_loss",
        lambda on: None if on else "is off",
        why="the gradients of the encoder are divided by the tokens of the language model",
        fix="Set model.calculate_per_token_loss=true.",
        fails=False,
        passes=True,
    ),
    *(
        _layout_rule(
            f"M18{letter}",
            f"model.{name}",
            _must_be(supported),
            why="per-module parallelism supports tensor and data parallelism in float32 only",
            fix=f"Leave {name} at its default, or set language_rank_offset=0 and leave "
            "vision_tensor_model_parallel_size unset.",
            fails=unsupported_value,
            passes=supported,
        )
        for letter, (name, (supported, unsupported_value)) in zip(
            ascii_lowercase, REQUIRED_SETTINGS.items(), strict=False
        )
    ),
    *(
        model_rule(
            number,
            paths={"rows": path},
            why="a microbatch holds the rows of all replicas of the modules, and each replica takes its part",
            fix=f"Set {path} to a multiple of the replicas of encoder and language model.",
            fails={"rows": 3, "language_rank_offset": 2, "tp": 1, "all_processes": 4},
            passes={"rows": 4},
        )(_rows_not_divided_by_replicas)
        for number, path in (("M19", "train.micro_batch_size"), ("M20", "validation.eval_micro_batch_size"))
    ),
    *(
        _layout_rule(
            f"M21{letter}",
            path,
            _must_be(supported=False),
            why=why,
            fix="Switch it off.",
            fails=True,
            passes=False,
        )
        for letter, (path, why) in zip(ascii_lowercase, EXCHANGE.items(), strict=False)
    ),
    *(
        _layout_rule(
            f"M22{letter}",
            path,
            _must_be(supported),
            why="each module has separate groups and generators, which are always created with default settings",
            fix="Leave it at its default.",
            fails=unsupported_value,
            passes=supported,
        )
        for letter, (path, (supported, unsupported_value)) in zip(
            ascii_lowercase, PROCESS_WIDE.items(), strict=False
        )
    ),
    _layout_rule(
        "M23",
        "peft",
        lambda adapters: "is set" if adapters is not None else None,
        why="adapters need the complete model",
        fix="Remove the section peft, or set language_rank_offset=0 and leave vision_tensor_model_parallel_size unset.",
        fails={},
        passes=None,
    ),
    _layout_rule(
        "M24",
        "rerun_state_machine.rerun_mode",
        lambda mode: None if mode in (None, "disabled") else f"is {mode}",
        why="a step that is run again would need agreement with the encoder's ranks, which have no loss",
        fix='Set rerun_state_machine.rerun_mode="disabled".',
        fails="validate_results",
        passes="disabled",
    ),
    _layout_rule(
        "M25",
        "train.check_weight_hash_across_dp_replicas_interval",
        lambda interval: f"is {interval}" if interval is not None else None,
        why="replicas of the two modules are on different ranks, and those of only one would be compared",
        fix="Leave it unset.",
        fails=10,
        passes=None,
    ),
)
"""Rules that read the number of processes are not applied when a model is built, which checks its ranks itself."""
