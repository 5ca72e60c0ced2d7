"""Rules on tensor-parallel overlap: its requirements, and its settings."""

from collections.abc import Mapping
from typing import Any

from mb_overlap.transformer_engine.arguments import Dataclass, to_transformer_engine
from mb_overlap.transformer_engine.buffer_settings import setting_problems
from mb_overlap.transformer_engine.te_versions import parse_version
from mb_schema.rule_kinds import implied_by, rule
from mb_schema.rules import Rule


def _needs_tensor_parallel(requested: bool | None, tp: int | None) -> str | None:
    return f"needs tensor parallelism (tp={tp})" if requested and (tp or 1) < 2 else None


def _needs_sequence_parallel(
    requested: bool | None, tp: int | None, sequence_parallel: bool | None
) -> str | None:
    if requested and (tp or 1) >= 2 and not sequence_parallel:
        return f"needs sequence parallelism (tp={tp}, sequence_parallel={sequence_parallel})"
    return None


def _needs_transformer_engine(requested: bool | None, transformer_engine: object) -> str | None:
    if requested and transformer_engine is False:
        return f"needs Transformer Engine (transformer_engine={transformer_engine})"
    return None


def _needs_engine_layers(requested: bool | None, implementation: str | None) -> str | None:
    if requested and implementation == "local":
        return f"needs Transformer Engine's layers (transformer_impl={implementation})"
    return None


def _settings_valid(cfg: Dataclass | Mapping[str, Any] | str | None) -> str | None:
    if cfg is None or isinstance(cfg, str):
        return None
    problems = setting_problems(to_transformer_engine(cfg))
    return "; ".join(problems) or None


def _settings_supported(cfg: Dataclass | Mapping[str, Any] | str | None, version: str) -> str | None:
    if cfg is None or isinstance(cfg, str):
        return None
    settings = to_transformer_engine(cfg)
    in_any_release = setting_problems(settings)
    in_release = setting_problems(settings, release=parse_version(version))
    problems = [text for text in in_release if text not in in_any_release]
    return "; ".join(problems) or None


TENSOR_PARALLEL = rule(
    "O02",
    ("comm_overlap.tp_comm_overlap", "model.tensor_model_parallel_size"),
    _needs_tensor_parallel,
    why="a single rank has no tensor-parallel communication to hide",
    fix="Set model.tensor_model_parallel_size=2 or more, or comm_overlap.tp_comm_overlap=false.",
    fails=(True, 1),
    passes=(True, 2),
    severity="warning",
)

SEQUENCE_PARALLEL = rule(
    "O03",
    ("comm_overlap.tp_comm_overlap", "model.tensor_model_parallel_size", "model.sequence_parallel"),
    _needs_sequence_parallel,
    why="the overlapped GEMM all-gathers its input from the sequence shards, or reduce-scatters its output to them",
    fix="Set model.sequence_parallel=true or comm_overlap.tp_comm_overlap=false.",
    fails=(True, 4, False),
    passes=(True, 4, True),
    severity="warning",
)

TRANSFORMER_ENGINE = rule(
    "O04",
    ("comm_overlap.tp_comm_overlap", "facts.transformer_engine"),
    _needs_transformer_engine,
    why="it provides the kernels of the overlapped GEMMs and of the user buffers",
    fix="Install transformer-engine[pytorch] or set comm_overlap.tp_comm_overlap=false.",
    fails=(True, False),
    passes=(True, True),
    severity="warning",
)

ENGINE_LAYERS = rule(
    "O04b",
    ("comm_overlap.tp_comm_overlap", "model.transformer_impl"),
    _needs_engine_layers,
    why="only these linear layers have overlapped GEMMs",
    fix="Set model.transformer_impl=transformer_engine or comm_overlap.tp_comm_overlap=false.",
    fails=(True, "local"),
    passes=(True, "transformer_engine"),
    severity="warning",
)

NEEDS = (
    TENSOR_PARALLEL,
    implied_by("O04b", SEQUENCE_PARALLEL),
    TRANSFORMER_ENGINE,
    implied_by("O04", ENGINE_LAYERS),
)
"""Requirements of tensor-parallel overlap."""


def _settings_rules(section: str, suffix: str) -> tuple[Rule, Rule]:
    path, version = f"{section}.tp_comm_overlap_cfg", "facts.transformer_engine_version"
    good = {"fc1_fprop": {"method": "ring_exchange"}}
    return (
        rule(
            f"O24{suffix}",
            path,
            _settings_valid,
            why="Transformer Engine rejects such settings at initialization, or misinterprets them",
            fix="Correct the settings, or use a preset: mb_overlap.find_preset.",
            fails=({"fc1_fprop": {"method": "pipeline"}},),
            passes=(good,),
        ),
        rule(
            f"O24a{suffix}",
            (path, version),
            _settings_supported,
            why="that release of Transformer Engine does not support them",
            fix="Remove them, or install a later transformer-engine[pytorch].",
            fails=({"fc2_wgrad": {"method": "external"}}, "2.6.0"),
            passes=(good, "2.6.0"),
        ),
    )


RULES: tuple[Rule, ...] = (*NEEDS, *_settings_rules("comm_overlap", ""), *_settings_rules("model", "M"))
"""Every rule of this file."""
