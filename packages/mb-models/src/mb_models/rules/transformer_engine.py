"""Rules on settings that need Transformer Engine, or a version of it, with any kind of layers.

Megatron Core imports the kernels when the model is built or in the first step, and fails there. Rules on settings that
only affect speed have a fallback. Without a GPU these settings are replaced when the model is built, and no rule
applies.
"""

from collections.abc import Mapping

from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule
from mb_schema.versions import at_least

_INSTALL = "Install Transformer Engine"


def _switch_without_engine(on, *, transformer_engine, cpu):
    if on and not transformer_engine and not cpu:
        return "is on, but Transformer Engine is not installed"
    return None


@model_rule(
    "KN02a",
    why="the kernel is Transformer Engine's",
    fix=f"{_INSTALL}, or set model.apply_rope_fusion=false.",
    fails={"apply_rope_fusion": True},
    passes={"transformer_engine": True},
    fallback={"apply_rope_fusion": False},
)
def _rope_without_engine(apply_rope_fusion, multi_latent_attention, *, transformer_engine, cpu):
    return (
        None
        if multi_latent_attention
        else _switch_without_engine(apply_rope_fusion, transformer_engine=transformer_engine, cpu=cpu)
    )


@model_rule(
    "KN02d",
    why="the kernel is Transformer Engine's",
    fix=f"{_INSTALL}, or set model.cross_entropy_fusion_impl=native.",
    fails={"cross_entropy_fusion_impl": "te", "cross_entropy_loss_fusion": True},
    passes={"cross_entropy_fusion_impl": "native"},
    fallback={"cross_entropy_fusion_impl": "native"},
)
def _loss_without_engine(cross_entropy_fusion_impl, cross_entropy_loss_fusion, *, transformer_engine, cpu):
    if cross_entropy_fusion_impl != "te" or not cross_entropy_loss_fusion or transformer_engine or cpu:
        return None
    return "is te, but Transformer Engine is not installed"


@model_rule(
    "KN02e",
    why="Megatron Core would silently use its own tracker",
    fix=f"{_INSTALL}, or set model.use_te_rng_tracker=false and rng.te_rng_tracker=false.",
    fails={"use_te_rng_tracker": True},
    passes={"transformer_engine": True},
    fallback={"use_te_rng_tracker": False, "rng__te_rng_tracker": False},
)
def _rng_tracker_without_engine(use_te_rng_tracker, rng__te_rng_tracker, *, transformer_engine, cpu):
    return _switch_without_engine(
        use_te_rng_tracker or rng__te_rng_tracker, transformer_engine=transformer_engine, cpu=cpu
    )


@model_rule(
    "KN01",
    why="these layers are Transformer Engine's",
    fix=f"{_INSTALL}, or set model.transformer_impl=local.",
    fails={"transformer_impl": "transformer_engine"},
    passes={"transformer_impl": "local"},
    fallback={"transformer_impl": "local"},
)
def _layers_without_engine(transformer_impl, *, transformer_engine, cpu):
    if transformer_impl != "transformer_engine" or transformer_engine or cpu:
        return None
    return "is transformer_engine, but Transformer Engine is not installed"


@model_rule(
    "K36",
    why="8-bit and 4-bit arithmetic is Transformer Engine's",
    fix=f"{_INSTALL}, or choose another precision.",
    fails={"fp8": "hybrid"},
    passes={"transformer_engine": True},
)
def _formats_without_engine(fp8, fp4, *, transformer_engine, cpu):
    requested = {"fp8": fp8, "fp4": fp4}
    formats = [f"{name}={value}" for name, value in requested.items() if value]
    if formats and not transformer_engine and not cpu:
        return f"{', '.join(formats)}, but Transformer Engine is not installed"
    return None


def _version_below(version: str, needed: tuple[int, int]) -> str | None:
    if at_least(version, *needed):
        return None
    return f"needs Transformer Engine {needed[0]}.{needed[1]}, not {version}"


@model_rule(
    "KN03a",
    why="earlier versions have no such kernel",
    fix="Install a later Transformer Engine, or set model.apply_rope_fusion=false.",
    fails={"apply_rope_fusion": True, "rotary_interleaved": True, "transformer_engine_version": "2.2.0"},
    passes={"transformer_engine_version": "2.3.0.dev0"},
    fallback={"apply_rope_fusion": False},
)
def _engine_too_old_for_rope(
    apply_rope_fusion, rotary_interleaved, multi_latent_attention, *, transformer_engine_version
):
    if apply_rope_fusion and not multi_latent_attention:
        return _version_below(transformer_engine_version, (2, 3) if rotary_interleaved else (1, 4))
    return None


@model_rule(
    "KN03b",
    why="earlier versions have no such kernel",
    fix="Install a later Transformer Engine, or set model.moe_permute_fusion=false.",
    fails={"moe_permute_fusion": True, "transformer_engine_version": "2.0"},
    passes={"transformer_engine_version": "2.1"},
    fallback={"moe_permute_fusion": False},
)
def _engine_too_old_for_permutation(moe_permute_fusion, *, transformer_engine_version):
    return _version_below(transformer_engine_version, (2, 1)) if moe_permute_fusion else None


@model_rule(
    "KN03c",
    why="earlier versions have no such kernel",
    fix="Install a later Transformer Engine, or set model.moe_router_fusion=false.",
    fails={
        "moe_router_fusion": True,
        "moe_router_score_function": "sqrtsoftplus",
        "transformer_engine_version": "2.12.0",
    },
    passes={"moe_router_score_function": "softmax", "transformer_engine_version": "2.7.0"},
    fallback={"moe_router_fusion": False},
)
def _engine_too_old_for_router(moe_router_fusion, moe_router_score_function, *, transformer_engine_version):
    if moe_router_fusion:
        return _version_below(
            transformer_engine_version, (2, 13) if moe_router_score_function == "sqrtsoftplus" else (2, 7)
        )
    return None


@model_rule(
    "KN03d",
    why="the loss of earlier versions cannot be captured",
    fix="Install a later Transformer Engine, or set model.cross_entropy_fusion_impl=native.",
    fails={
        "cross_entropy_fusion_impl": "te",
        "cross_entropy_loss_fusion": True,
        "cuda_graph_impl": "full_iteration",
        "transformer_engine_version": "2.6.0",
    },
    passes={"cuda_graph_impl": "none"},
    fallback={"cross_entropy_fusion_impl": "native"},
)
def _engine_too_old_for_loss(
    cross_entropy_fusion_impl, cross_entropy_loss_fusion, cuda_graph_impl, *, transformer_engine_version
):
    if (
        cross_entropy_fusion_impl == "te"
        and cross_entropy_loss_fusion
        and cuda_graph_impl == "full_iteration"
    ):
        return _version_below(transformer_engine_version, (2, 7))
    return None


LAYERS = _layers_without_engine
"""Applied first, because other rules read `transformer_impl`."""

PACKAGE: tuple[Rule, ...] = (
    _formats_without_engine,
    _rope_without_engine,
    model_rule(
        "KN02b",
        paths={"on": "model.moe_permute_fusion"},
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.moe_permute_fusion=false.",
        fails={"on": True},
        passes={"transformer_engine": True},
        fallback={"on": False},
    )(_switch_without_engine),
    model_rule(
        "KN02c",
        paths={"on": "model.moe_router_fusion"},
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.moe_router_fusion=false.",
        fails={"on": True},
        passes={"transformer_engine": True},
        fallback={"on": False},
    )(_switch_without_engine),
    _loss_without_engine,
    _rng_tracker_without_engine,
)
"""Rules on settings that need Transformer Engine, with any kind of layers."""

_MAX_LOGITS_SINCE = (2, 9)
"""Minimum version of Transformer Engine whose attention returns its largest logits."""


@model_rule(
    "T44",
    why="earlier versions do not return the largest attention logits",
    fix="Install Transformer Engine 2.9 or later, or switch it off.",
    fails={"qk_clip": True, "transformer_engine_version": "2.8.0"},
    passes={"transformer_engine_version": "2.9.0"},
)
def _engine_returns_no_max_logits(qk_clip, log_max_attention_logit, *, transformer_engine_version):
    requested = [
        name
        for name, on in (("qk_clip", qk_clip), ("log_max_attention_logit", log_max_attention_logit))
        if on
    ]
    if not requested or _version_below(transformer_engine_version, _MAX_LOGITS_SINCE) is None:
        return None
    return f"{' and '.join(requested)} with Transformer Engine {transformer_engine_version}"


VERSIONS: tuple[Rule, ...] = (
    _engine_too_old_for_rope,
    _engine_too_old_for_permutation,
    _engine_too_old_for_router,
    _engine_too_old_for_loss,
    _engine_returns_no_max_logits,
)
"""Rules on settings that need a minimum version of Transformer Engine."""

_ATTENTION_VARIABLES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_ATTENTION_VALUES: Mapping[str, str] = {
    "flash": "100",
    "fused": "010",
    "unfused": "001",
    "auto": "111",
    "local": "000",
}
"""Backend to the values of `_ATTENTION_VARIABLES` that Megatron Core sets for it."""


@model_rule(
    "KN13",
    why="Megatron Core sets these variables for the backend, and rejects other values when it builds the model",
    fix="Unset them in the shell and in env_vars (a model that was built in this process has set them), and choose the "
    "backend by model.attention_backend alone.",
    fails={"attention_backend": "auto", "env": {"NVTE_FLASH_ATTN": "0"}},
    passes={"env": {"NVTE_FLASH_ATTN": "1"}},
)
def _variables_contradict_attention_backend(attention_backend, transformer, *, env):
    if attention_backend not in _ATTENTION_VALUES:
        return None
    needed = dict(zip(_ATTENTION_VARIABLES, _ATTENTION_VALUES[attention_backend], strict=True))
    flash_version = (transformer or {}).get("flash_attention_version")
    if flash_version is not None:
        needed |= {f"NVTE_FLASH_ATTN_V{number}": "0" for number in (2, 3, 4) if number != flash_version}
    wrong = [
        f"{name}={env[name]} instead of {value}"
        for name, value in needed.items()
        if env.get(name, value) != value
    ]
    return f"is {attention_backend} with {', '.join(wrong)}" if wrong else None


_FUSED_EXPERTS = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"


@model_rule(
    "KN15",
    why="Megatron Core rejects other grouped experts under the operation fuser when it builds the model",
    fix="Remove use_transformer_engine_op_fuser, or change the setting.",
    fails={
        "transformer": {"use_transformer_engine_op_fuser": True},
        "moe_grouped_gemm": True,
        "num_moe_experts": 4,
        "transformer_engine_version": "2.13.0",
        "env": {},
    },
    passes={
        "activation_func": "silu",
        "gated_linear_unit": True,
        "env": {_FUSED_EXPERTS: "1"},
        "transformer_engine_version": "2.14.0",
    },
)
def _experts_without_operation_fuser(
    transformer,
    num_moe_experts,
    moe_grouped_gemm,
    etp,
    tp,
    activation_func,
    gated_linear_unit,
    *,
    transformer_engine_version,
    env,
    cpu,
):
    is_fused = transformer.get("use_transformer_engine_op_fuser") and num_moe_experts and moe_grouped_gemm
    if not is_fused or cpu:
        return None
    tensor_ranks = (tp if etp is None else etp) or 1
    is_squared = activation_func == "squared_relu" and not gated_linear_unit
    has_kernel = (
        transformer.get("use_fused_weighted_squared_relu")
        if is_squared
        else gated_linear_unit and activation_func in ("silu", "quick_gelu")
    )
    obstacles = {
        f"Transformer Engine {transformer_engine_version}, below 2.14": not at_least(
            transformer_engine_version, 2, 14
        ),
        f"experts split over {tensor_ranks} tensor-parallel ranks": tensor_ranks > 1,
        "moe_apply_probs_on_input": transformer.get("moe_apply_probs_on_input"),
        f"activation_func={activation_func}, gated_linear_unit={gated_linear_unit}": not has_kernel,
        f"{_FUSED_EXPERTS} other than 1 in the environment": not is_squared
        and (env or {}).get(_FUSED_EXPERTS, "0") in ("", "0"),
    }
    found = [obstacle for obstacle, is_met in obstacles.items() if is_met]
    return f"use_transformer_engine_op_fuser of grouped experts with {'; '.join(found)}" if found else None


RULES: tuple[Rule, ...] = (
    LAYERS,
    *PACKAGE,
    *VERSIONS,
    _variables_contradict_attention_backend,
    _experts_without_operation_fuser,
)
"""All rules of this file; the rule on layers is first, because its fallback changes the kind of layers."""
