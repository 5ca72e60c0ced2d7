"""What can be said about overlap before a run starts: each rule is a function of plain values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mb_overlap.pipeline import choose_sending, sending_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a configuration, with an example on either side of it."""

    id: str
    """Short name, for people and for commands that explain a rule."""
    fields: tuple[str, ...]
    """Paths whose values `test` takes, in order: `section.field`, or `facts.name` for an outside fact."""
    test: Callable[..., str | None]
    """Returns None when the values are fine, else what is wrong with them."""
    why: str
    """Reason for the condition."""
    fix: str
    """What to do about it."""
    severity: Literal["error", "warning"] = "error"
    """A warning is about a wish that cannot be granted: the run is right without it."""
    fails: Mapping[str, object]
    """An example that the rule refuses: path to value."""
    passes: Mapping[str, object]
    """An example that the rule accepts: path to value."""

    def check(self, *values: object) -> str | None:
        """Return None when the values are fine, else what is wrong, why, and what to do, in one text."""
        problem = self.test(*values)
        return None if problem is None else f"{problem}, because {self.why}. {self.fix}"


def _needs_tensor_parallel(wish: bool | None, tp: int | None) -> str | None:
    return f"needs tensor parallelism (tp={tp})" if wish and (tp or 1) < 2 else None


def _needs_sequence_parallel(wish: bool | None, tp: int | None, sequence_parallel: bool | None) -> str | None:
    if wish and (tp or 1) >= 2 and not sequence_parallel:
        return f"needs sequence parallelism (tp={tp}, sequence_parallel={sequence_parallel})"
    return None


def _needs_transformer_engine(wish: bool | None, transformer_engine: object) -> str | None:
    if wish and transformer_engine is False:
        return f"needs Transformer Engine (transformer_engine={transformer_engine})"
    return None


def _wish_fits_the_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None
) -> str | None:
    return sending_problem(pp, vp, *choose_sending(pp, vp, overlap_p2p_comm, batch_p2p_comm))


def _model_fits_the_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None, resolved: bool
) -> str | None:
    return sending_problem(pp, vp, bool(overlap_p2p_comm), bool(batch_p2p_comm)) if resolved else None


def _agrees_with_the_layout(
    dp: int | None, world_size: int, tp: int | None, pp: int | None, cp: int | None
) -> str | None:
    model_ranks = (tp or 1) * (pp or 1) * (cp or 1)
    if dp is None or dp * model_ranks == world_size:
        return None
    return (
        f"does not fit the layout (data_parallel_size={dp}, tp*pp*cp={model_ranks}, world_size={world_size})"
    )


TENSOR_PARALLEL = Rule(
    id="O02",
    fields=("comm_overlap.tp_comm_overlap", "model.tensor_model_parallel_size"),
    test=_needs_tensor_parallel,
    why="one rank alone has no tensor-parallel communication to hide",
    fix="Set model.tensor_model_parallel_size=2 or more, or comm_overlap.tp_comm_overlap=false.",
    severity="warning",
    fails={"comm_overlap.tp_comm_overlap": True, "model.tensor_model_parallel_size": 1},
    passes={"comm_overlap.tp_comm_overlap": True, "model.tensor_model_parallel_size": 2},
)

SEQUENCE_PARALLEL = Rule(
    id="O03",
    fields=("comm_overlap.tp_comm_overlap", "model.tensor_model_parallel_size", "model.sequence_parallel"),
    test=_needs_sequence_parallel,
    why="the overlapped GEMM gathers its input from the sequence shards, or scatters its output over them",
    fix="Set model.sequence_parallel=true or comm_overlap.tp_comm_overlap=false.",
    severity="warning",
    fails={
        "comm_overlap.tp_comm_overlap": True,
        "model.tensor_model_parallel_size": 4,
        "model.sequence_parallel": False,
    },
    passes={
        "comm_overlap.tp_comm_overlap": True,
        "model.tensor_model_parallel_size": 4,
        "model.sequence_parallel": True,
    },
)

TRANSFORMER_ENGINE = Rule(
    id="O04",
    fields=("comm_overlap.tp_comm_overlap", "facts.transformer_engine"),
    test=_needs_transformer_engine,
    why="the overlapped GEMMs and their user buffers are its kernels",
    fix="Install transformer-engine[pytorch] or set comm_overlap.tp_comm_overlap=false.",
    severity="warning",
    fails={"comm_overlap.tp_comm_overlap": True, "facts.transformer_engine": False},
    passes={"comm_overlap.tp_comm_overlap": True, "facts.transformer_engine": True},
)

SENDING = Rule(
    id="O05",
    fields=(
        "comm_overlap.overlap_p2p_comm",
        "comm_overlap.batch_p2p_comm",
        "model.pipeline_model_parallel_size",
        "model.virtual_pipeline_model_parallel_size",
    ),
    test=_wish_fits_the_schedule,
    why="each pipeline schedule of Megatron Core is written for certain ways of sending",
    fix="Leave comm_overlap.overlap_p2p_comm and comm_overlap.batch_p2p_comm unset.",
    fails={
        "comm_overlap.overlap_p2p_comm": None,
        "comm_overlap.batch_p2p_comm": True,
        "model.pipeline_model_parallel_size": 2,
        "model.virtual_pipeline_model_parallel_size": 2,
    },
    passes={
        "comm_overlap.overlap_p2p_comm": None,
        "comm_overlap.batch_p2p_comm": None,
        "model.pipeline_model_parallel_size": 2,
        "model.virtual_pipeline_model_parallel_size": 2,
    },
)

MODEL_SENDING = Rule(
    id="O05M",
    fields=(
        "model.overlap_p2p_comm",
        "model.batch_p2p_comm",
        "model.pipeline_model_parallel_size",
        "model.virtual_pipeline_model_parallel_size",
        "facts.resolved",
    ),
    test=_model_fits_the_schedule,
    why="each pipeline schedule of Megatron Core is written for certain ways of sending",
    fix="Add a comm_overlap section, or set model.overlap_p2p_comm=true and model.batch_p2p_comm=false with "
    "virtual pipeline stages, the other way round without.",
    fails={
        "model.overlap_p2p_comm": False,
        "model.batch_p2p_comm": True,
        "model.pipeline_model_parallel_size": 2,
        "model.virtual_pipeline_model_parallel_size": 2,
        "facts.resolved": True,
    },
    passes={
        "model.overlap_p2p_comm": True,
        "model.batch_p2p_comm": False,
        "model.pipeline_model_parallel_size": 2,
        "model.virtual_pipeline_model_parallel_size": 2,
        "facts.resolved": True,
    },
)
"""`facts.resolved`: no section `comm_overlap` is going to change these values any more."""

DATA_PARALLEL_SIZE = Rule(
    id="O14",
    fields=(
        "comm_overlap.data_parallel_size",
        "facts.world_size",
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.context_parallel_size",
    ),
    test=_agrees_with_the_layout,
    why="whether the distributed optimizer has anything to overlap is read from it",
    fix="Leave comm_overlap.data_parallel_size unset, or set it to world_size / (tp*pp*cp).",
    fails={
        "comm_overlap.data_parallel_size": 8,
        "facts.world_size": 8,
        "model.tensor_model_parallel_size": 2,
        "model.pipeline_model_parallel_size": 1,
        "model.context_parallel_size": 1,
    },
    passes={
        "comm_overlap.data_parallel_size": 4,
        "facts.world_size": 8,
        "model.tensor_model_parallel_size": 2,
        "model.pipeline_model_parallel_size": 1,
        "model.context_parallel_size": 1,
    },
)

RULES: tuple[Rule, ...] = (
    TENSOR_PARALLEL,
    SEQUENCE_PARALLEL,
    TRANSFORMER_ENGINE,
    SENDING,
    MODEL_SENDING,
    DATA_PARALLEL_SIZE,
)
"""Every rule of the section, in the order of their ids."""
