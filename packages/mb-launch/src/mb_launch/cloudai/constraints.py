"""CloudAI's constraints on a launch, as functions on plain values, and the rules that cover them. No dependencies."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mb_launch.errors import LauncherError

NO_GRAPHS = frozenset({"", "none", "null"})
"""Values of `cuda_graph_impl` that capture nothing."""

GRAPH_IMPLEMENTATIONS = frozenset({*NO_GRAPHS, "transformer_engine", "local"})
GRAPH_SCOPES = frozenset({"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"})

DEEPSEEK_STAGES = frozenset({(1, 1), (4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4)})
"""Pairs (pp, vp) for which DeepSeek V3 has a pipeline layout."""

RECOMPUTE_IN_GRAPH: Mapping[str, frozenset[str]] = {
    "attn": frozenset({"core_attn", "mla_up_proj"}),
    "mlp": frozenset({"mlp"}),
    "moe": frozenset({"moe_act", "moe", "shared_experts"}),
    "moe_router": frozenset({"moe", "shared_experts"}),
}
"""Captured scope -> modules that cannot be recomputed at the same time."""


class SweepError(LauncherError, ValueError):
    """A field of a single launch has a list of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintViolation:
    """A constraint that a launch violates."""

    id: str
    """Number of the constraint: C01 to C18 are CloudAI's, C19 and C20 are later additions."""
    reason: str
    """Description of the problem, with the values."""

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """Values of a launch that constraints read; degrees that are not given, or 0, count as 1."""

    num_gpus: int
    tp: int
    pp: int
    cp: int
    vp: int | None
    ep: int | None
    etp: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    fsdp: bool
    optimizer_instances: int | None
    graphs: str
    scopes: tuple[str, ...]
    recompute: frozenset[str]
    expert_overlap: bool
    offloaded_layers: int
    recipe: str
    num_layers: int | None
    uneven: bool
    """Whether a layout assigns layers to the stages."""

    @property
    def model_ranks(self) -> int:
        """GPUs that share one copy of the model."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Data-parallel copies of the model."""
        return self.num_gpus // self.model_ranks if self.model_ranks > 0 else 0

    @property
    def captures(self) -> bool:
        """Whether scopes are captured as CUDA graphs."""
        return self.graphs not in NO_GRAPHS and bool(self.scopes)


def read_launch_request(arguments: Mapping[str, object]) -> LaunchRequest:
    """Return the values that constraints read, from arguments under CloudAI's names (`tp`, `mb`, `num_gpus`, ...).

    Raises:
        SweepError: A field has a list of values; expand the sweep first.
    """

    def one(name: str) -> object:
        value = arguments.get(name)
        if isinstance(value, list):
            raise SweepError(
                f"cmd_args.{name}: {value} is a list, because it describes several launches. Check each separately."
            )
        return value

    def number(name: str) -> int | None:
        value = one(name)
        return None if value is None else int(str(value))

    def flag(name: str) -> bool:
        return bool(one(name))

    return LaunchRequest(
        num_gpus=number("num_gpus") or 0,
        tp=number("tp") or 1,
        pp=number("pp") or 1,
        cp=number("cp") or 1,
        vp=number("vp"),
        ep=number("ep"),
        etp=number("et"),
        micro_batch_size=number("mb"),
        global_batch_size=number("gb"),
        fsdp=flag("use_megatron_fsdp"),
        optimizer_instances=number("num_distributed_optimizer_instances"),
        graphs=str(one("cuda_graph_impl") or "").strip().lower(),
        scopes=tuple(list_items(arguments.get("cuda_graph_scope"))),
        recompute=frozenset(list_items(arguments.get("recompute_modules"))),
        expert_overlap=flag("moe_a2a_overlap"),
        offloaded_layers=number("activation_offload_layers") or 0,
        recipe=str(one("model_recipe_name") or "").lower(),
        num_layers=number("num_layers"),
        uneven=bool(arguments.get("pipeline_model_parallel_layout")),
    )


def list_items(value: object) -> Iterator[str]:
    """Yield the items of a list, or of a text such as `[attn,"moe"]`, in lower case.

    As in CloudAI, an empty pair of quotes is an empty item in a text, and no item in a list.
    """
    if value is None:
        return
    for part in value if isinstance(value, list) else [value]:
        text = str(part).strip().strip("\"'")
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        for item in text.split(","):
            bare = item.strip().strip("\"'").lower()
            if bare or (item.strip() and not isinstance(value, list)):
                yield bare


def violated_constraints(request: LaunchRequest, *, additional: bool = False) -> list[ConstraintViolation]:
    """Return all violated constraints, in the order of their numbers.

    Args:
        request: The launch.
        additional: Include those of `ADDITIONAL`, by which CloudAI rejects nothing.
    """
    results = (
        (name, test(request)) for name, test in CONSTRAINTS.items() if additional or name not in ADDITIONAL
    )
    return [ConstraintViolation(id=name, reason=reason) for name, reason in results if reason is not None]


def _ranks(r: LaunchRequest) -> str | None:
    if r.model_ranks > 0 and r.num_gpus % r.model_ranks == 0:
        return None
    return f"num_gpus={r.num_gpus} is not a multiple of tp x pp x cp = {r.tp} x {r.pp} x {r.cp}"


def _stages_have_layers(r: LaunchRequest) -> str | None:
    stages = r.pp * (r.vp or 1)
    if r.num_layers is None or stages <= r.num_layers:
        return None
    return f"num_layers={r.num_layers} are fewer than pp x vp = {r.pp} x {r.vp or 1} stages"


def _copies(r: LaunchRequest) -> str | None:
    return (
        None if r.dp else f"no copy of the model fits (num_gpus={r.num_gpus}, tp x pp x cp = {r.model_ranks})"
    )


def _batch(r: LaunchRequest) -> str | None:
    if not (r.micro_batch_size and r.global_batch_size):
        return None
    divisor = r.micro_batch_size * r.dp * ((r.optimizer_instances or 1) if r.fsdp else 1)
    if divisor and r.global_batch_size % divisor == 0:
        return None
    instances = " x instances" if r.fsdp else ""
    return f"gb={r.global_batch_size} is not a multiple of mb x dp{instances} = {divisor}"


def _fsdp_graphs(r: LaunchRequest) -> str | None:
    return "use_megatron_fsdp does not go with CUDA graphs" if r.fsdp and r.captures else None


def _fsdp_layout(r: LaunchRequest) -> str | None:
    if not r.fsdp or (r.pp == 1 and r.cp == 1 and r.vp in (None, 1)):
        return None
    return f"use_megatron_fsdp needs pp=1, cp=1 and vp=1 (pp={r.pp}, cp={r.cp}, vp={r.vp})"


def _expert_ranks(r: LaunchRequest) -> str | None:
    if r.etp is None or r.ep is None:
        return None
    ranks = r.etp * r.ep * r.pp
    if ranks != 0 and r.num_gpus % ranks == 0:
        return None
    return f"num_gpus={r.num_gpus} is not a multiple of et x ep x pp = {r.etp} x {r.ep} x {r.pp}"


def _chunks(r: LaunchRequest) -> str | None:
    if r.vp is not None and r.vp < 1:
        return f"vp={r.vp} is not a number of chunks"
    if r.num_layers is None or r.uneven or r.pp < 2:
        return None
    stage, rest = divmod(r.num_layers, r.pp)
    allowed = [] if rest else [vp for vp in range(1, stage + 1) if stage % vp == 0]
    if (r.vp or 1) in allowed:
        return None
    return f"vp={r.vp or 1} does not cut num_layers={r.num_layers} over pp={r.pp} evenly (allowed: {allowed or 'none'})"


def _instances(r: LaunchRequest) -> str | None:
    if (r.optimizer_instances or 1) < 2 or r.fsdp:
        return None
    return f"num_distributed_optimizer_instances={r.optimizer_instances} needs use_megatron_fsdp"


def _offload_stages(r: LaunchRequest) -> str | None:
    if r.pp < 2 or r.offloaded_layers < 1:
        return None
    return f"activation_offload_layers={r.offloaded_layers} needs pp=1 (pp={r.pp})"


def _graphs_overlap(r: LaunchRequest) -> str | None:
    if r.graphs in NO_GRAPHS or not r.expert_overlap:
        return None
    return f"moe_a2a_overlap needs cuda_graph_impl=none ({r.graphs})"


def _graphs_offload(r: LaunchRequest) -> str | None:
    if not r.captures or r.offloaded_layers < 1:
        return None
    return f"activation_offload_layers={r.offloaded_layers} does not go with CUDA graphs"


def _implementation(r: LaunchRequest) -> str | None:
    if r.graphs in GRAPH_IMPLEMENTATIONS:
        return None
    return f"cuda_graph_impl={r.graphs} is none of none, transformer_engine, local"


def _scopes(r: LaunchRequest) -> str | None:
    if r.graphs == "local" and r.scopes and r.scopes != ("full_iteration",):
        return f"cuda_graph_impl=local captures full_iteration only, not {', '.join(r.scopes)}"
    wrong = [scope for scope in r.scopes if scope not in GRAPH_SCOPES]
    if r.graphs == "transformer_engine" and wrong:
        return f"cuda_graph_impl=transformer_engine cannot capture {', '.join(wrong)}"
    return None


def _router(r: LaunchRequest) -> str | None:
    return (
        "cuda_graph_scope holds both moe and moe_router" if {"moe", "moe_router"} <= set(r.scopes) else None
    )


def _preprocess(r: LaunchRequest) -> str | None:
    if "moe_preprocess" not in r.scopes or "moe_router" in r.scopes:
        return None
    return "cuda_graph_scope holds moe_preprocess without moe_router"


def _recompute(r: LaunchRequest) -> str | None:
    clashes = [
        f"{scope} with {', '.join(sorted(r.recompute & modules))}"
        for scope, modules in RECOMPUTE_IN_GRAPH.items()
        if scope in r.scopes and r.recompute & modules
    ]
    if (
        "layernorm" in r.recompute
        and {"attn", "mlp"} <= set(r.scopes)
        and {"moe", "moe_router"} & set(r.scopes)
    ):
        clashes.append("attn, mlp and experts with layernorm")
    return f"captured and recomputed at once: {'; '.join(clashes)}" if clashes else None


def _deepseek(r: LaunchRequest) -> str | None:
    pair = (r.pp, 1 if r.vp is None else r.vp)
    if not any(name in r.recipe for name in ("deepseek_v3", "deepseekv3")) or pair in DEEPSEEK_STAGES:
        return None
    return f"DeepSeek V3 has no layout for (pp, vp) = {pair}, only for {', '.join(map(str, sorted(DEEPSEEK_STAGES)))}"


def _chunks_need_stages(r: LaunchRequest) -> str | None:
    return f"vp={r.vp} needs pp=2 or more (pp={r.pp})" if (r.vp or 1) > 1 and r.pp < 2 else None


def _overlap_needs_chunks(r: LaunchRequest) -> str | None:
    if not r.expert_overlap or r.pp < 2 or (r.vp or 1) > 1:
        return None
    return f"moe_a2a_overlap with pp={r.pp} needs vp=2 or more (vp={r.vp})"


CONSTRAINTS: Mapping[str, Callable[[LaunchRequest], str | None]] = {
    "C01": _ranks,
    "C02": _stages_have_layers,
    "C03": _copies,
    "C04": _batch,
    "C05": _fsdp_graphs,
    "C06": _fsdp_layout,
    "C07": _expert_ranks,
    "C08": _chunks,
    "C09": _instances,
    "C10": _offload_stages,
    "C11": _graphs_overlap,
    "C12": _graphs_offload,
    "C13": _implementation,
    "C14": _scopes,
    "C15": _router,
    "C16": _preprocess,
    "C17": _recompute,
    "C18": _deepseek,
    "C19": _chunks_need_stages,
    "C20": _overlap_needs_chunks,
}
"""Number -> test, which returns None if the constraint holds. C02 and C08 hold if the number of layers is unknown."""

ADDITIONAL = frozenset({"C02", "C08", "C19", "C20"})
"""Constraints of Megatron that CloudAI does not check: it always accepts C02 and C08, and its list ends with C18."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCoverage:
    """Coverage of one constraint by rules."""

    rules: tuple[str, ...] = ()
    """Rules with the same condition."""
    allowed: str = ""
    """Part of the condition that is allowed here, if any."""


CONSTRAINT_COVERAGE: Mapping[str, ConstraintCoverage] = {
    "C01": ConstraintCoverage(rules=("V030",)),
    "C02": ConstraintCoverage(rules=("P05",)),
    "C03": ConstraintCoverage(rules=("V030",)),
    "C04": ConstraintCoverage(rules=("V242",)),
    "C05": ConstraintCoverage(allowed="Megatron Core allows CUDA graphs under Megatron-FSDP."),
    "C06": ConstraintCoverage(
        rules=("FS05",),
        allowed="Megatron Core allows context parallelism under Megatron-FSDP, but no stages.",
    ),
    "C07": ConstraintCoverage(rules=("P09",)),
    "C08": ConstraintCoverage(rules=("P05",)),
    "C09": ConstraintCoverage(
        rules=("FS10",),
        allowed="Megatron Core allows several instances of the distributed optimizer without Megatron-FSDP; it is with "
        "Megatron-FSDP that this trainer takes one only.",
    ),
    "C11": ConstraintCoverage(rules=("O09m",)),
    "C13": ConstraintCoverage(rules=("V150",)),
    "C14": ConstraintCoverage(rules=("V152", "V153")),
    "C15": ConstraintCoverage(rules=("K28",)),
    "C16": ConstraintCoverage(rules=("K29",)),
    "C17": ConstraintCoverage(rules=("K34",)),
    "C18": ConstraintCoverage(
        allowed="Any number of stages with a layout is allowed: the recipe deepseek_v3 sets one in "
        "model.pipeline_model_parallel_layout."
    ),
    "C19": ConstraintCoverage(rules=("P07",)),
    "C20": ConstraintCoverage(rules=("O09f",)),
}
"""Coverage by constraint. The other constraints are rules with the same number."""


def explain_coverage(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return how a constraint that is not a rule itself is covered, and the rules with its condition.

    None: there is no such constraint, or it is a rule with the same number.
    """
    coverage = CONSTRAINT_COVERAGE.get(name.upper())
    if coverage is None:
        return None
    covered = coverage.allowed or f"The same problem is reported by {' and '.join(coverage.rules)}."
    return (
        f"{name.upper()} is a constraint of CloudAI's on a launch, and no rule of its own. {covered}",
        coverage.rules,
    )
