"""Rules on deterministic runs and CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.rules.rule import Rule

ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")


def _v140(deterministic: bool | None, fusion: bool | None) -> str | None:
    return "does not go with cross_entropy_loss_fusion" if deterministic and fusion else None


def _v141(deterministic: bool | None, env: Mapping[str, str], backend: str | None) -> str | None:
    if not deterministic or backend == "gloo" or env.get("NCCL_ALGO") in ALGORITHMS:
        return None
    return f"needs NCCL_ALGO in the environment, one of {', '.join(ALGORITHMS)} (NCCL_ALGO={env.get('NCCL_ALGO')})"


def _names(value: object) -> set[str]:
    entries = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return {str(entry).rpartition(".")[2] for entry in entries}


def _full_iteration(implementation: str | None, modules: object, scope: object) -> bool:
    if implementation == "full_iteration":
        return True
    return implementation == "local" and "full_iteration" in _names(modules) | _names(scope)


def _v150(implementation: str | None) -> str | None:
    known = (None, "none", "local", "transformer_engine", "full_iteration")
    return (
        None if implementation in known else f"{implementation!r} is none of {', '.join(map(str, known[1:]))}"
    )


def _v152(implementation: str | None, modules: object, scope: object, inference: object) -> str | None:
    if implementation != "local" or _full_iteration(implementation, modules, scope):
        return None
    trained = (_names(modules) | _names(scope)) - {"", "full"}
    if not trained and str(inference).rpartition(".")[2] in ("layer", "block"):
        return None
    return f"local captures no training graph by module ({', '.join(sorted(trained)) or 'no module named'})"


def _v127(check_nan: bool | None, implementation: str | None, modules: object, scope: object) -> str | None:
    if not check_nan or not _full_iteration(implementation, modules, scope):
        return None
    return "does not go with a CUDA graph of the full iteration"


RULES: tuple[Rule, ...] = (
    Rule(
        id="V140",
        fields=("model.deterministic_mode", "model.cross_entropy_loss_fusion"),
        test=_v140,
        why="the fused loss adds in changing order",
        fix="Set model.cross_entropy_loss_fusion=false or model.deterministic_mode=false.",
        fails={"model.deterministic_mode": True, "model.cross_entropy_loss_fusion": True},
        passes={"model.deterministic_mode": True, "model.cross_entropy_loss_fusion": False},
    ),
    Rule(
        id="V141",
        fields=("model.deterministic_mode", "facts.env", "dist.distributed_backend"),
        test=_v141,
        why="NCCL otherwise picks an algorithm, and with it the order of additions, by itself",
        fix="Export NCCL_ALGO=Ring, or set model.deterministic_mode=false.",
        fails={"model.deterministic_mode": True, "facts.env": {"NCCL_ALGO": "Ring,Tree"}},
        passes={"model.deterministic_mode": True, "facts.env": {"NCCL_ALGO": "Ring"}},
    ),
    Rule(
        id="V150",
        fields=("model.cuda_graph_impl",),
        test=_v150,
        why="Megatron Core knows no other way to capture a graph",
        fix="Use a name from the list.",
        fails={"model.cuda_graph_impl": "te"},
        passes={"model.cuda_graph_impl": "none"},
    ),
    Rule(
        id="V152",
        fields=(
            "model.cuda_graph_impl",
            "model.cuda_graph_modules",
            "model.cuda_graph_scope",
            "model.inference_cuda_graph_scope",
        ),
        test=_v152,
        why="graphs of single modules are captured by Transformer Engine",
        fix="Set model.cuda_graph_impl=transformer_engine, or full_iteration.",
        fails={"model.cuda_graph_impl": "local", "model.cuda_graph_modules": ["attn"]},
        passes={"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_modules": ["attn"]},
    ),
    Rule(
        id="V127",
        fields=(
            "rerun_state_machine.check_for_nan_in_loss",
            "model.cuda_graph_impl",
            "model.cuda_graph_modules",
            "model.cuda_graph_scope",
        ),
        test=_v127,
        why="the check reads the loss on the host, in the middle of the graph",
        fix="Set rerun_state_machine.check_for_nan_in_loss=false.",
        fails={
            "rerun_state_machine.check_for_nan_in_loss": True,
            "model.cuda_graph_impl": "full_iteration",
        },
        passes={
            "rerun_state_machine.check_for_nan_in_loss": False,
            "model.cuda_graph_impl": "full_iteration",
        },
    ),
)
