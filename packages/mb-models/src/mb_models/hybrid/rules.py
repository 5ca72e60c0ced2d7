"""Rules on the section of a hybrid model, in addition to those for every family."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from mb_models.hybrid.config import MambaModelConfig, main_layers, mamba_heads, mtp_layers
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

FAMILY_FIELDS = frozenset({"hybrid_layer_pattern", "decoder_seq_length", "vision_num_layers"})
"""Fields that exactly one family has, in every section of it."""


def family_rule(
    number: str,
    names: Sequence[str],
    test: Callable[..., str | None],
    *,
    why: str,
    fix: str,
    fails: Sequence[object],
    passes: Sequence[object],
) -> Rule:
    """Return a rule on fields of the model section; the examples are in the order of the fields.

    The rule does not apply to sections of another family, which lack the field of this family (None), and not to
    parallel sizes below 1, which rule P01 rejects.
    """
    paths = tuple(f"model.{name}" for name in names)
    markers = [index for index, name in enumerate(names) if name in FAMILY_FIELDS]
    sizes = [index for index, name in enumerate(names) if name.endswith("parallel_size")]

    def tested(*values: Any) -> str | None:
        other_family = any(values[index] is None for index in markers)
        invalid_size = any(values[index] is not None and values[index] < 1 for index in sizes)
        return None if other_family or invalid_size else test(*values)

    return rule(
        number,
        paths,
        tested,
        why=why,
        fix=fix,
        fails=fails,
        passes=passes,
    )


LAYERS = "MG*-E"
"""Letters of the supported layers."""


def _known_letters(pattern: str) -> str | None:
    unknown = sorted(set(pattern) - set(LAYERS + "|/"))
    if unknown:
        return f"{pattern!r} has unsupported letters ({', '.join(unknown)})"
    return None if main_layers(pattern) else f"{pattern!r} has no layers"


def _layer_count(layers: int, pattern: str) -> str | None:
    number = len(main_layers(pattern))
    return None if layers == number else f"is {layers}, but {pattern!r} has {number} layers"


def _experts_match_pattern(experts: int | None, pattern: str) -> str | None:
    if (experts is not None) == ("E" in pattern):
        return None
    return f"is {experts} with the pattern {pattern!r}"


def _stages(pattern: str, pp: int, vpp: int | None) -> str | None:
    parts, stages = pattern.split("/")[0].split("|"), pp * (vpp or 1)
    if len(parts) == stages and (len(parts) == 1 or all(parts)):
        return None
    if len(parts) == 1 and (vpp or 1) == 1 and len(parts[0]) % pp == 0:
        return None
    return f"{pattern!r} cannot be divided into {stages} stages (pp={pp}, vpp={vpp})"


def _single_split(pattern: str, first: int | None, last: int | None, layout: object) -> str | None:
    requested = [value for value in (first, last, layout) if value is not None]
    return f"a second division of {pattern!r} into stages is set ({requested[0]})" if requested else None


def _further_tokens(pattern: str, number: int | None) -> str | None:
    ahead = mtp_layers(pattern)
    if len(set(ahead)) > 1 or "" in ahead or any("|" in part for part in ahead):
        return f"{pattern!r} does not have the same layers for each predicted token"
    if number is None or number == len(ahead):
        return None
    return f"{pattern!r} predicts {len(ahead)} tokens beyond the next, mtp_num_layers={number}"


def _state_space(
    pattern: str, hidden: int, state: int, width: int, groups: int, number: int | None, tp: int, cp: int
) -> str | None:
    if "M" not in pattern:
        return None
    if min(state, width, groups) < 1 or (number is None and 2 * hidden % width != 0):
        return f"sizes must be positive, heads integral (state {state}, head {width}, groups {groups}, hidden {hidden})"
    heads = mamba_heads(hidden, number, width)
    if heads % (tp * cp) or groups % tp or heads % groups:
        return f"{heads} heads in {groups} groups cannot be shared (tp={tp}, cp={cp})"
    local = groups // tp
    if local % cp and cp % local:
        return f"{local} groups of a tensor-parallel rank cannot be shared by cp={cp}"
    return None


def _gated_delta(pattern: str, keys: int, values: int, tp: int, cp: int) -> str | None:
    if "G" not in pattern:
        return None
    if min(keys, values) < 1 or values % keys or keys % (tp * cp):
        return f"{keys} key heads and {values} value heads cannot be shared (tp={tp}, cp={cp})"
    return None


def _gated_delta_sequence_parallel(pattern: str, tp: int, together: bool) -> str | None:
    if "G" not in pattern or tp == 1 or together:
        return None
    return f"gated-delta layers under tensor parallelism (tp={tp}, sequence_parallel=false)"


def _experts_everywhere(freq: int | Sequence[int]) -> str | None:
    return f"is {freq}" if freq != 1 else None


def _no_duplicate_fields(extra: Mapping[str, object], pattern: str) -> str | None:
    repeated = sorted({item.name for item in fields(MambaModelConfig)} & extra.keys())
    return (
        f"{', '.join(repeated)}: set the field of the model section itself" if repeated and pattern else None
    )


RULES: tuple[Rule, ...] = (
    family_rule(
        "HY01",
        ("hybrid_layer_pattern",),
        _known_letters,
        why="every letter is one layer: M Mamba, G gated delta, * attention, - MLP, E experts",
        fix="Use these letters, | between pipeline stages, and / before the layers of each token beyond the next.",
        fails=("M+M",),
        passes=("MG*-|E/*-",),
    ),
    family_rule(
        "HY02",
        ("num_layers", "hybrid_layer_pattern"),
        _layer_count,
        why="the pattern lists the layers, and Megatron indexes the experts' losses by num_layers",
        fix="Set num_layers to the number of letters before the first /.",
        fails=(2, "M*-"),
        passes=(3, "M|*-/*"),
    ),
    family_rule(
        "HY03",
        ("num_moe_experts", "hybrid_layer_pattern"),
        _experts_match_pattern,
        why="layers E have num_moe_experts experts, and no other layer has any",
        fix="Set num_moe_experts together with a pattern that has E, or neither.",
        fails=(4, "M*-"),
        passes=(4, "M*E"),
    ),
    family_rule(
        "HY04",
        ("hybrid_layer_pattern", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        _stages,
        why="every pipeline stage, virtual or not, is one part between |, and without | stages have equal lengths",
        fix="Put | between the stages: one part for each of pipeline_model_parallel_size times virtual stages.",
        fails=("M*-", 2, None),
        passes=("M*|-", 2, None),
    ),
    family_rule(
        "HY05",
        (
            "hybrid_layer_pattern",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "pipeline_model_parallel_layout",
        ),
        _single_split,
        why="the pattern itself defines the first layer of each stage",
        fix="Put | between the stages, and unset the others.",
        fails=("M*-", 1, None, None),
        passes=("M*-", None, None, None),
    ),
    family_rule(
        "HY06",
        ("hybrid_layer_pattern", "mtp_num_layers"),
        _further_tokens,
        why="each token beyond the next is predicted by the same layers, one /... in the pattern for each",
        fix="Repeat the part after / for each token beyond the next, and leave mtp_num_layers unset.",
        fails=("M*/*-/*", None),
        passes=("M*/*-/*-", None),
    ),
    family_rule(
        "HY07",
        (
            "hybrid_layer_pattern",
            "hidden_size",
            "mamba_state_dim",
            "mamba_head_dim",
            "mamba_num_groups",
            "mamba_num_heads",
            "tensor_model_parallel_size",
            "context_parallel_size",
        ),
        _state_space,
        why="tensor- and context-parallel ranks share the heads and groups of Mamba layers evenly",
        fix="Change mamba_num_heads or mamba_num_groups, or the parallel sizes.",
        fails=("M", 64, 16, 16, 1, 8, 2, 1),
        passes=("M", 64, 16, 16, 2, 8, 2, 2),
    ),
    family_rule(
        "HY08",
        (
            "hybrid_layer_pattern",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "tensor_model_parallel_size",
            "context_parallel_size",
        ),
        _gated_delta,
        why="tensor- and context-parallel ranks share the heads of gated-delta layers evenly",
        fix="Change linear_num_key_heads and linear_num_value_heads, or the parallel sizes.",
        fails=("G", 2, 4, 2, 2),
        passes=("G", 4, 8, 2, 2),
    ),
    family_rule(
        "HY09",
        ("hybrid_layer_pattern", "tensor_model_parallel_size", "sequence_parallel"),
        _gated_delta_sequence_parallel,
        why="Megatron sums the gradient of their norm over the ranks only then, and its copies would drift apart "
        "without an error",
        fix="Set sequence_parallel=true.",
        fails=("G*", 2, False),
        passes=("G*", 2, True),
    ),
    family_rule(
        "HY10",
        ("softmax_type", "hybrid_layer_pattern"),
        lambda sinks, pattern: f"is {sinks}" if sinks != "vanilla" else None,
        why="the attention of hybrid layers has none on the CPU, and is untested with them on a GPU",
        fix="Set softmax_type=vanilla.",
        fails=("learnable", "*"),
        passes=("vanilla", "*"),
    ),
    family_rule(
        "HY11",
        ("moe_layer_freq", "hybrid_layer_pattern"),
        lambda freq, pattern: _experts_everywhere(freq),
        why="the pattern selects the layers with experts",
        fix="Leave it at 1, and write E for each layer with experts.",
        fails=(2, "ME"),
        passes=(1, "ME"),
    ),
    family_rule(
        "HY12",
        ("transformer", "hybrid_layer_pattern"),
        _no_duplicate_fields,
        why="the section has a field of that name, and one of the two values would be ignored",
        fix="Remove them.",
        fails=({"mamba_state_dim": 64}, "M"),
        passes=({}, "M"),
    ),
    family_rule(
        "HY13",
        ("multi_latent_attention", "hybrid_layer_pattern"),
        lambda latent, pattern: "is on" if latent else None,
        why="hybrid attention layers are plain; Megatron's + layers are not supported",
        fix="Switch it off, or use a GPT.",
        fails=(True, "*"),
        passes=(False, "*"),
    ),
    family_rule(
        "HY14",
        ("activation_func", "hybrid_layer_pattern"),
        lambda name, pattern: (
            f"is {name} with gated-delta layers" if "G" in pattern and name != "silu" else None
        ),
        why="Megatron Core applies the model's activation to their convolution, whose kernels support SiLU only",
        fix='Set activation_func="silu", or remove G from the pattern.',
        fails=("gelu", "G-"),
        passes=("gelu", "M-"),
    ),
)
"""Apply where the section has a hybrid_layer_pattern."""
