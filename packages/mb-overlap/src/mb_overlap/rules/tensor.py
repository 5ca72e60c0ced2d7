"""Rules on tensor-parallel overlap: its requirements, and its settings."""

from functools import partial

from mb_overlap.transformer_engine.arguments import to_transformer_engine
from mb_overlap.transformer_engine.buffer_settings import setting_problems
from mb_overlap.transformer_engine.te_versions import parse_version
from mb_schema.rule_kinds import section_rule
from mb_schema.rules import Rule, rules_in

comm_overlap_rule = partial(section_rule, "comm_overlap")


@comm_overlap_rule(
    "O02",
    why="a single rank has no tensor-parallel communication to hide",
    fix="Set model.tensor_model_parallel_size=2 or more, or comm_overlap.tp_comm_overlap=false.",
    fails={"tp_comm_overlap": True, "tp": 1},
    passes={"tp": 2},
    severity="warning",
)
def needs_tensor_parallel(tp_comm_overlap, tp):
    """Reject overlap on a single tensor-parallel rank."""
    return f"needs tensor parallelism (tp={tp})" if tp_comm_overlap and (tp or 1) < 2 else None


@comm_overlap_rule(
    "O03",
    why="the overlapped GEMM all-gathers its input from the sequence shards, or reduce-scatters its output to them",
    fix="Set model.sequence_parallel=true or comm_overlap.tp_comm_overlap=false.",
    fails={"tp_comm_overlap": True, "tp": 4, "model__sequence_parallel": False},
    passes={"model__sequence_parallel": True},
    severity="warning",
    implied_by="O04b",
)
def _needs_sequence_parallel(tp_comm_overlap, tp, model__sequence_parallel):
    if tp_comm_overlap and (tp or 1) >= 2 and not model__sequence_parallel:
        return f"needs sequence parallelism (tp={tp}, sequence_parallel={model__sequence_parallel})"
    return None


@comm_overlap_rule(
    "O04",
    why="it provides the kernels of the overlapped GEMMs and of the user buffers",
    fix="Install transformer-engine[pytorch] or set comm_overlap.tp_comm_overlap=false.",
    fails={"tp_comm_overlap": True, "transformer_engine": False},
    passes={"transformer_engine": True},
    severity="warning",
)
def _needs_transformer_engine(tp_comm_overlap, *, transformer_engine):
    if tp_comm_overlap and transformer_engine is False:
        return f"needs Transformer Engine (transformer_engine={transformer_engine})"
    return None


@comm_overlap_rule(
    "O04b",
    why="only these linear layers have overlapped GEMMs",
    fix="Set model.transformer_impl=transformer_engine or comm_overlap.tp_comm_overlap=false.",
    fails={"tp_comm_overlap": True, "model__transformer_impl": "local"},
    passes={"model__transformer_impl": "transformer_engine"},
    severity="warning",
    implied_by="O04",
)
def _needs_engine_layers(tp_comm_overlap, model__transformer_impl):
    if tp_comm_overlap and model__transformer_impl == "local":
        return f"needs Transformer Engine's layers (transformer_impl={model__transformer_impl})"
    return None


NEEDS: tuple[Rule, ...] = rules_in(globals())
"""Requirements of tensor-parallel overlap."""


def _settings_rules(section: str, suffix: str) -> tuple[Rule, Rule]:
    named = partial(section_rule, section)
    good = {"fc1_fprop": {"method": "ring_exchange"}}

    @named(
        f"O24{suffix}",
        why="Transformer Engine rejects such settings at initialization, or misinterprets them",
        fix="Correct the settings, or use a preset: mb_overlap.find_preset.",
        fails={"tp_comm_overlap_cfg": {"fc1_fprop": {"method": "pipeline"}}},
        passes={"tp_comm_overlap_cfg": good},
    )
    def invalid_settings(tp_comm_overlap_cfg):
        if tp_comm_overlap_cfg is None or isinstance(tp_comm_overlap_cfg, str):
            return None
        return "; ".join(setting_problems(to_transformer_engine(tp_comm_overlap_cfg))) or None

    @named(
        f"O24a{suffix}",
        why="that release of Transformer Engine does not support them",
        fix="Remove them, or install a later transformer-engine[pytorch].",
        fails={
            "tp_comm_overlap_cfg": {"fc2_wgrad": {"method": "external"}},
            "transformer_engine_version": "2.6.0",
        },
        passes={"tp_comm_overlap_cfg": good},
    )
    def unsupported_settings(tp_comm_overlap_cfg, *, transformer_engine_version):
        if tp_comm_overlap_cfg is None or isinstance(tp_comm_overlap_cfg, str):
            return None
        settings = to_transformer_engine(tp_comm_overlap_cfg)
        in_any_release = setting_problems(settings)
        in_release = setting_problems(settings, release=parse_version(transformer_engine_version))
        return "; ".join(text for text in in_release if text not in in_any_release) or None

    return invalid_settings, unsupported_settings


RULES: tuple[Rule, ...] = (*NEEDS, *_settings_rules("comm_overlap", ""), *_settings_rules("model", "M"))
"""Every rule of this file."""
