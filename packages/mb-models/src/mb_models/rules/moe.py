"""Rules on experts, router, load balancing and the exchange of tokens."""

from collections.abc import Sequence

from mb_models.rules.model_rule import model_rule
from mb_schema.gpu_capabilities import KNOWN, capability
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import SET, among, excludes, in_range, no_effect, requires, rule, within
from mb_schema.rules import Rule


def _expert_bias_with_tensor_parallel(
    experts: int | None, bias: bool, etp: int | None, tp: int
) -> str | None:
    size = tp if etp is None else etp
    if experts is None or not bias or size == 1:
        return None
    return f"{experts} experts with biases cannot be split over {size} tensor-parallel ranks"


def _coefficients_not_one_per_loss(
    kinds: str | Sequence[str], weights: float | Sequence[float]
) -> str | None:
    if isinstance(kinds, str) or (not isinstance(weights, int | float) and len(weights) == len(kinds)):
        return None
    return f"is {weights} for {len(kinds)} types of load balancing"


def _capacity_with_sinkhorn(factor: float | None, kinds: str | Sequence[str]) -> str | None:
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    if factor is None or "sinkhorn" not in chosen:
        return None
    return f"is {factor} with moe_router_load_balancing_type=sinkhorn"


def _softmax_over_one_expert(
    topk: int, score: str, pre_softmax: bool, kind: str | Sequence[str]
) -> str | None:
    if topk != 1 or score != "softmax" or pre_softmax or kind == "sinkhorn":
        return None
    return "a softmax over the single selected expert has no gradient"


def _group_limited_routing_impossible(
    topk: int | None, groups: int | None, experts: int | None
) -> str | None:
    if not topk:
        return None
    if not groups or not experts:
        return f"needs moe_router_num_groups={groups} and num_moe_experts={experts} to be set"
    if experts % groups or topk > groups:
        return f"cannot select {topk} of {groups} groups of {experts} experts"
    return None


_DISPATCH = ("model.moe_flex_dispatcher_backend", "model.moe_token_dispatcher_type", "facts.gpu")


_DEEPEP_BLACKWELL = ("b200", "b300")
"""Blackwell GPUs for which DeepEP is built."""


def _deepep_unsupported(backend: str | None, dispatcher: str | None, gpu: str) -> str | None:
    compute_capability = capability(gpu)
    if dispatcher != "flex" or backend != "deepep" or compute_capability is None:
        return None
    if compute_capability[0] in (8, 9) or find_short_name(gpu, KNOWN) in _DEEPEP_BLACKWELL:
        return None
    return f"deepep does not run on {gpu}"


def _hybridep_unsupported(backend: str | None, dispatcher: str | None, gpu: str) -> str | None:
    compute_capability = capability(gpu)
    if (
        dispatcher != "flex"
        or backend != "hybridep"
        or compute_capability is None
        or compute_capability[0] in (8, 9, 10)
    ):
        return None
    return f"hybridep does not run on {gpu}"


_OVER_ALL_TOKENS = ("sinkhorn", "quantile_balancing")


def _routing_over_all_tokens_in_fine_tuning(
    kind: str | Sequence[str], root: object, experts: int | None
) -> str | None:
    return f"is {kind} for fine-tuning" if kind in _OVER_ALL_TOKENS and root is not None and experts else None


def _topk_outside_experts(topk: int, experts: int | None) -> str | None:
    if experts is None or 1 <= topk <= experts:
        return None
    return f"a token cannot use that many experts (moe_router_topk={topk}, num_moe_experts={experts})"


RULES: tuple[Rule, ...] = (
    in_range(
        "K14",
        "model.num_moe_experts",
        1,
        why="a layer with experts needs at least one",
        fix="Set a positive number, or leave it unset for a dense model.",
        fails=0,
        passes=4,
    ),
    model_rule(
        "K15",
        (
            "num_moe_experts",
            "add_bias_linear",
            "expert_tensor_parallel_size",
            "tensor_model_parallel_size",
        ),
        _expert_bias_with_tensor_parallel,
        why="each rank would add the bias once",
        fix="Set add_bias_linear=false, or expert_tensor_parallel_size=1.",
        fails=(4, True, None, 2),
        passes=(4, True, 1, 2),
    ),
    in_range(
        "K16",
        "model.moe_shared_expert_intermediate_size",
        1,
        why="an expert without width computes nothing",
        fix="Set a positive width, or leave it unset for no shared expert.",
        fails=0,
        passes=64,
    ),
    requires(
        "K17",
        {"model.moe_shared_expert_overlap": True, "model.moe_shared_expert_intermediate_size": SET},
        {"model.moe_token_dispatcher_type": among("alltoall", "flex")},
        why="only these dispatchers overlap computation with the exchange of tokens",
        fix="Set moe_token_dispatcher_type to alltoall or flex, or moe_shared_expert_overlap=false.",
        fails=(True, 64, "allgather"),
        passes=(True, 64, "alltoall"),
    ),
    excludes(
        "G39",
        {"model.variable_seq_lengths": True, "model.moe_token_dispatcher_type": "allgather"},
        why="Megatron Core rejects this dispatcher, the default, with lengths that differ between microbatches",
        fix="Set model.moe_token_dispatcher_type=alltoall, or model.variable_seq_lengths=false.",
        fails=(True, "allgather"),
        passes=(True, "alltoall"),
    ),
    model_rule(
        "K18",
        ("moe_router_load_balancing_type", "moe_aux_loss_coeff"),
        _coefficients_not_one_per_loss,
        why="each type of load balancing has its own weight",
        fix="Give moe_aux_loss_coeff a list of the same length.",
        fails=(["aux_loss", "seq_aux_loss"], 0.1),
        passes=(["aux_loss", "seq_aux_loss"], [0.1, 0.1]),
    ),
    model_rule(
        "K19",
        ("moe_expert_capacity_factor", "moe_router_load_balancing_type"),
        _capacity_with_sinkhorn,
        why="sinkhorn already gives each expert its even share",
        fix="Unset moe_expert_capacity_factor, or balance by a loss.",
        fails=(1.0, "sinkhorn"),
        passes=(1.0, "aux_loss"),
    ),
    requires(
        "K20",
        {"model.moe_pad_expert_input_to_capacity": True},
        {"model.moe_expert_capacity_factor": SET},
        why="there is no capacity to pad to",
        fix="Set moe_expert_capacity_factor, or moe_pad_expert_input_to_capacity=false.",
        fails=(True, None),
        passes=(True, 1.0),
    ),
    requires(
        "K21",
        {"model.moe_router_enable_expert_bias": True},
        {"model.moe_router_score_function": among("sigmoid", "sqrtsoftplus")},
        why="the bias is added to scores that are independent of each other",
        fix="Set moe_router_score_function=sigmoid, or moe_router_enable_expert_bias=false.",
        fails=(True, "softmax"),
        passes=(True, "sigmoid"),
    ),
    model_rule(
        "K22",
        (
            "moe_router_topk",
            "moe_router_score_function",
            "moe_router_pre_softmax",
            "moe_router_load_balancing_type",
        ),
        _softmax_over_one_expert,
        why="the softmax of a single score is always 1",
        fix="Set moe_router_pre_softmax=true.",
        fails=(1, "softmax", False, "aux_loss"),
        passes=(1, "softmax", True, "aux_loss"),
    ),
    model_rule(
        "K23",
        ("moe_router_group_topk", "moe_router_num_groups", "num_moe_experts"),
        _group_limited_routing_impossible,
        why="a token selects groups of equal size first, and then experts within them",
        fix="Set moe_router_num_groups to a divisor of num_moe_experts that is not smaller than "
        "moe_router_group_topk.",
        fails=(3, 2, 4),
        passes=(1, 2, 4),
    ),
    rule(
        "V159",
        _DISPATCH,
        _deepep_unsupported,
        why="its kernels are built for Ampere, Ada, Hopper, B200 and B300",
        fix="Set model.moe_flex_dispatcher_backend=hybridep or model.moe_token_dispatcher_type=alltoall.",
        fails=("deepep", "flex", "gb200"),
        passes=("deepep", "flex", "h100"),
    ),
    rule(
        "V160",
        _DISPATCH,
        _hybridep_unsupported,
        why="its kernels are built for Ampere, Ada, Hopper and Blackwell",
        fix="Set model.moe_token_dispatcher_type=alltoall.",
        fails=("hybridep", "flex", "v100"),
        passes=("hybridep", "flex", "gb200"),
    ),
    rule(
        "G11",
        within("model", "moe_router_topk num_moe_experts"),
        _topk_outside_experts,
        why="the router selects among the existing experts",
        fix="Lower moe_router_topk or raise num_moe_experts.",
        fails=(3, 2),
        passes=(2, 2),
    ),
    no_effect(
        "G12",
        "model.num_moe_experts",
        {"model.moe_ffn_hidden_size": None, "model.moe_shared_expert_intermediate_size": None},
        why="without num_moe_experts the model is dense",
        fix="Set num_moe_experts, or unset the sizes.",
        fails=(None, 64, None),
        passes=(4, 64, None),
    ),
    rule(
        "G57",
        ("model.moe_router_load_balancing_type", "dataset.dataset_root", "model.num_moe_experts"),
        _routing_over_all_tokens_in_fine_tuning,
        why="it assigns experts to all tokens of a microbatch together, so padding would change those of the others",
        fix="Use aux_loss, seq_aux_loss, global_aux_loss or none.",
        fails=("sinkhorn", "/data", 8),
        passes=("seq_aux_loss", "/data", 8),
    ),
)
