"""Rules on settings that need Transformer Engine, or a version of it, with any kind of layers.

Megatron Core imports the kernels when the model is built or in the first step, and fails there. Rules on settings that
only affect speed have a fallback. Without a GPU these settings are replaced when the model is built, and no rule
applies.
"""

from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_ENGINE, _VERSION = "facts.transformer_engine", "facts.transformer_engine_version"
_LAYERS, _CPU = "model.transformer_impl", "facts.cpu"

_INSTALL = "Install Transformer Engine"


def _switch_without_engine(on: bool | None, engine: bool, cpu: bool) -> str | None:
    return "is on, but Transformer Engine is not installed" if on and not engine and not cpu else None


def _rope_without_engine(on: bool | None, latent: bool | None, engine: bool, cpu: bool) -> str | None:
    return None if latent else _switch_without_engine(on, engine, cpu)


def _loss_without_engine(impl: str | None, fused: bool | None, engine: bool, cpu: bool) -> str | None:
    if impl != "te" or not fused or engine or cpu:
        return None
    return "is te, but Transformer Engine is not installed"


def _rng_tracker_without_engine(model: bool | None, rng: bool | None, engine: bool, cpu: bool) -> str | None:
    return _switch_without_engine(model or rng, engine, cpu)


def _layers_without_engine(layers: str | None, engine: bool, cpu: bool) -> str | None:
    if layers != "transformer_engine" or engine or cpu:
        return None
    return "is transformer_engine, but Transformer Engine is not installed"


def _formats_without_engine(fp8: str | None, fp4: str | None, engine: bool, cpu: bool) -> str | None:
    requested = {"fp8": fp8, "fp4": fp4}
    formats = [f"{name}={value}" for name, value in requested.items() if value]
    return (
        f"{', '.join(formats)}, but Transformer Engine is not installed"
        if formats and not engine and not cpu
        else None
    )


def release(version: str) -> tuple[int, int]:
    """Return the major and the minor number of a version; a missing number is 0."""
    parts = version.partition("+")[0].split(".")
    digits = ["".join(char for char in part if char.isdecimal()) for part in parts[:2]]
    major, minor = (int(number or 0) for number in [*digits, "0"][:2])
    return major, minor


def _version_below(version: str, needed: tuple[int, int]) -> str | None:
    if release(version) >= needed:
        return None
    return f"needs Transformer Engine {needed[0]}.{needed[1]}, not {version}"


def _engine_too_old_for_rope(
    on: bool | None, interleaved: bool | None, latent: bool | None, version: str
) -> str | None:
    return _version_below(version, (2, 3) if interleaved else (1, 4)) if on and not latent else None


def _engine_too_old_for_permutation(on: bool | None, version: str) -> str | None:
    return _version_below(version, (2, 1)) if on else None


def _engine_too_old_for_router(on: bool | None, score: str | None, version: str) -> str | None:
    return _version_below(version, (2, 13) if score == "sqrtsoftplus" else (2, 7)) if on else None


def _engine_too_old_for_loss(
    impl: str | None, fused: bool | None, graph: str | None, version: str
) -> str | None:
    return _version_below(version, (2, 7)) if impl == "te" and fused and graph == "full_iteration" else None


LAYERS = rule(
    "KN01",
    (_LAYERS, _ENGINE, _CPU),
    _layers_without_engine,
    why="these layers are Transformer Engine's",
    fix=f"{_INSTALL}, or set model.transformer_impl=local.",
    fails=("transformer_engine", False, False),
    passes=("local", False, False),
    fallback={_LAYERS: "local"},
)
"""Applied first, because other rules read `transformer_impl`."""

PACKAGE: tuple[Rule, ...] = (
    rule(
        "K36",
        ("model.fp8", "model.fp4", _ENGINE, _CPU),
        _formats_without_engine,
        why="8-bit and 4-bit arithmetic is Transformer Engine's",
        fix=f"{_INSTALL}, or choose another precision.",
        fails=("hybrid", None, False, False),
        passes=("hybrid", None, True, False),
    ),
    rule(
        "KN02a",
        ("model.apply_rope_fusion", "model.multi_latent_attention", _ENGINE, _CPU),
        _rope_without_engine,
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.apply_rope_fusion=false.",
        fails=(True, False, False, False),
        passes=(True, False, True, False),
        fallback={"model.apply_rope_fusion": False},
    ),
    rule(
        "KN02b",
        ("model.moe_permute_fusion", _ENGINE, _CPU),
        _switch_without_engine,
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.moe_permute_fusion=false.",
        fails=(True, False, False),
        passes=(True, True, False),
        fallback={"model.moe_permute_fusion": False},
    ),
    rule(
        "KN02c",
        ("model.moe_router_fusion", _ENGINE, _CPU),
        _switch_without_engine,
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.moe_router_fusion=false.",
        fails=(True, False, False),
        passes=(True, True, False),
        fallback={"model.moe_router_fusion": False},
    ),
    rule(
        "KN02d",
        ("model.cross_entropy_fusion_impl", "model.cross_entropy_loss_fusion", _ENGINE, _CPU),
        _loss_without_engine,
        why="the kernel is Transformer Engine's",
        fix=f"{_INSTALL}, or set model.cross_entropy_fusion_impl=native.",
        fails=("te", True, False, False),
        passes=("native", True, False, False),
        fallback={"model.cross_entropy_fusion_impl": "native"},
    ),
    rule(
        "KN02e",
        ("model.use_te_rng_tracker", "rng.te_rng_tracker", _ENGINE, _CPU),
        _rng_tracker_without_engine,
        why="Megatron Core would silently use its own tracker",
        fix=f"{_INSTALL}, or set model.use_te_rng_tracker=false and rng.te_rng_tracker=false.",
        fails=(True, False, False, False),
        passes=(True, False, True, False),
        fallback={"model.use_te_rng_tracker": False, "rng.te_rng_tracker": False},
    ),
)
"""Rules on settings that need Transformer Engine, with any kind of layers."""

_MAX_LOGITS_SINCE = (2, 9)
"""Minimum version of Transformer Engine whose attention returns its largest logits."""


def _engine_returns_no_max_logits(clip: bool | None, log: bool | None, version: str) -> str | None:
    requested = [name for name, on in (("qk_clip", clip), ("log_max_attention_logit", log)) if on]
    if not requested or _version_below(version, _MAX_LOGITS_SINCE) is None:
        return None
    return f"{' and '.join(requested)} with Transformer Engine {version}"


VERSIONS: tuple[Rule, ...] = (
    rule(
        "KN03a",
        ("model.apply_rope_fusion", "model.rotary_interleaved", "model.multi_latent_attention", _VERSION),
        _engine_too_old_for_rope,
        why="earlier versions have no such kernel",
        fix="Install a later Transformer Engine, or set model.apply_rope_fusion=false.",
        fails=(True, True, False, "2.2.0"),
        passes=(True, True, False, "2.3.0.dev0"),
        fallback={"model.apply_rope_fusion": False},
    ),
    rule(
        "KN03b",
        ("model.moe_permute_fusion", _VERSION),
        _engine_too_old_for_permutation,
        why="earlier versions have no such kernel",
        fix="Install a later Transformer Engine, or set model.moe_permute_fusion=false.",
        fails=(True, "2.0"),
        passes=(True, "2.1"),
        fallback={"model.moe_permute_fusion": False},
    ),
    rule(
        "KN03c",
        ("model.moe_router_fusion", "model.moe_router_score_function", _VERSION),
        _engine_too_old_for_router,
        why="earlier versions have no such kernel",
        fix="Install a later Transformer Engine, or set model.moe_router_fusion=false.",
        fails=(True, "sqrtsoftplus", "2.12.0"),
        passes=(True, "softmax", "2.7.0"),
        fallback={"model.moe_router_fusion": False},
    ),
    rule(
        "KN03d",
        (
            "model.cross_entropy_fusion_impl",
            "model.cross_entropy_loss_fusion",
            "model.cuda_graph_impl",
            _VERSION,
        ),
        _engine_too_old_for_loss,
        why="the loss of earlier versions cannot be captured",
        fix="Install a later Transformer Engine, or set model.cross_entropy_fusion_impl=native.",
        fails=("te", True, "full_iteration", "2.6.0"),
        passes=("te", True, "none", "2.6.0"),
        fallback={"model.cross_entropy_fusion_impl": "native"},
    ),
    rule(
        "T44",
        ("model.qk_clip", "model.log_max_attention_logit", _VERSION),
        _engine_returns_no_max_logits,
        why="earlier versions do not return the largest attention logits",
        fix="Install Transformer Engine 2.9 or later, or switch it off.",
        fails=(True, False, "2.8.0"),
        passes=(True, False, "2.9.0"),
    ),
)
"""Rules on settings that need a minimum version of Transformer Engine."""

RULES: tuple[Rule, ...] = (LAYERS, *PACKAGE, *VERSIONS)
"""All rules of this file; the rule on layers is first, because its fallback changes the kind of layers."""
