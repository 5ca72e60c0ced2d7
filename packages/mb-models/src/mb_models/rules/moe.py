"""Rules on experts, router, load balancing and the exchange of tokens."""

from mb_schema.gpu_capabilities import KNOWN, capability
from mb_schema.gpu_names import find_short_name
from mb_schema.rule_kinds import SET, among, excludes, in_range, model_rule, no_effect, requires
from mb_schema.rules import Rule, rules_in


@model_rule(
    "K15",
    why="each rank would add the bias once",
    fix="Set add_bias_linear=false, or expert_tensor_parallel_size=1.",
    fails={"num_moe_experts": 4, "add_bias_linear": True, "tp": 2},
    passes={"etp": 1},
)
def _expert_bias_with_tensor_parallel(num_moe_experts, add_bias_linear, etp, tp):
    size = tp if etp is None else etp
    if num_moe_experts is None or not add_bias_linear or size == 1:
        return None
    return f"{num_moe_experts} experts with biases cannot be split over {size} tensor-parallel ranks"


@model_rule(
    "K18",
    why="each type of load balancing has its own weight",
    fix="Give moe_aux_loss_coeff a list of the same length.",
    fails={"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": 0.1},
    passes={"moe_aux_loss_coeff": [0.1, 0.1]},
)
def _coefficients_not_one_per_loss(moe_router_load_balancing_type, moe_aux_loss_coeff):
    if isinstance(moe_router_load_balancing_type, str) or (
        not isinstance(moe_aux_loss_coeff, int | float)
        and len(moe_aux_loss_coeff) == len(moe_router_load_balancing_type)
    ):
        return None
    return f"is {moe_aux_loss_coeff} for {len(moe_router_load_balancing_type)} types of load balancing"


@model_rule(
    "K19",
    why="sinkhorn already gives each expert its even share",
    fix="Unset moe_expert_capacity_factor, or balance by a loss.",
    fails={"moe_expert_capacity_factor": 1.0, "moe_router_load_balancing_type": "sinkhorn"},
    passes={"moe_router_load_balancing_type": "aux_loss"},
)
def _capacity_with_sinkhorn(moe_expert_capacity_factor, moe_router_load_balancing_type):
    chosen = (
        [moe_router_load_balancing_type]
        if isinstance(moe_router_load_balancing_type, str)
        else list(moe_router_load_balancing_type)
    )
    if moe_expert_capacity_factor is None or "sinkhorn" not in chosen:
        return None
    return f"is {moe_expert_capacity_factor} with moe_router_load_balancing_type=sinkhorn"


@model_rule(
    "G63",
    why="the router draws factors between 1 - eps and 1 + eps",
    fix="Use a number above 0; null disables the noise.",
    fails={"transformer": {"moe_input_jitter_eps": 0.0}, "num_moe_experts": 4},
    passes={"transformer": {"moe_input_jitter_eps": 0.01}},
)
def _noise_without_width(transformer, num_moe_experts):
    eps = transformer.get("moe_input_jitter_eps")
    if not num_moe_experts or eps is None or (isinstance(eps, int | float) and eps > 0):
        return None
    return f"moe_input_jitter_eps must be a number above 0 ({eps})"


@model_rule(
    "K22",
    why="the softmax of a single score is always 1",
    fix="Set moe_router_pre_softmax=true.",
    fails={"moe_router_topk": 1, "moe_router_score_function": "softmax"},
    passes={"moe_router_pre_softmax": True},
)
def _softmax_over_one_expert(
    moe_router_topk, moe_router_score_function, moe_router_pre_softmax, moe_router_load_balancing_type
):
    if (
        moe_router_topk != 1
        or moe_router_score_function != "softmax"
        or moe_router_pre_softmax
        or moe_router_load_balancing_type == "sinkhorn"
    ):
        return None
    return "a softmax over the single selected expert has no gradient"


@model_rule(
    "K23",
    why="a token selects groups of equal size first, and then experts within them",
    fix="Set moe_router_num_groups to a divisor of num_moe_experts that is not smaller than "
    "moe_router_group_topk, and this to at most moe_router_topk.",
    fails={"moe_router_group_topk": 3, "moe_router_num_groups": 2, "num_moe_experts": 4},
    passes={"moe_router_group_topk": 1},
)
def _group_limited_routing_impossible(
    moe_router_group_topk, moe_router_num_groups, num_moe_experts, moe_router_topk
):
    if not moe_router_group_topk:
        return None
    if not moe_router_num_groups or not num_moe_experts:
        return f"needs moe_router_num_groups={moe_router_num_groups} and num_moe_experts={num_moe_experts} to be set"
    if num_moe_experts % moe_router_num_groups or moe_router_group_topk > moe_router_num_groups:
        return f"cannot select {moe_router_group_topk} of {moe_router_num_groups} groups of {num_moe_experts} experts"
    in_groups = moe_router_group_topk * num_moe_experts // moe_router_num_groups
    if moe_router_topk and not moe_router_group_topk <= moe_router_topk <= in_groups:
        # a group is chosen by its best moe_router_topk // moe_router_group_topk experts
        return (
            f"is {moe_router_group_topk}, and moe_router_topk={moe_router_topk} is not between this number and the "
            f"{in_groups} experts of so many groups"
        )
    return None


_DEEPEP_BLACKWELL = ("b200", "b300")
"""Blackwell GPUs for which DeepEP is built."""


@model_rule(
    "V159",
    why="its kernels are built for Ampere, Ada, Hopper, B200 and B300",
    fix="Set model.moe_flex_dispatcher_backend=hybridep or model.moe_token_dispatcher_type=alltoall.",
    fails={"moe_flex_dispatcher_backend": "deepep", "moe_token_dispatcher_type": "flex", "gpu": "gb200"},
    passes={"gpu": "h100"},
)
def _deepep_unsupported(moe_flex_dispatcher_backend, moe_token_dispatcher_type, *, gpu):
    compute_capability = capability(gpu)
    if (
        moe_token_dispatcher_type != "flex"
        or moe_flex_dispatcher_backend != "deepep"
        or compute_capability is None
    ):
        return None
    if compute_capability[0] in (8, 9) or find_short_name(gpu, KNOWN) in _DEEPEP_BLACKWELL:
        return None
    return f"deepep does not run on {gpu}"


@model_rule(
    "V160",
    why="its kernels are built for Ampere, Ada, Hopper and Blackwell",
    fix="Set model.moe_token_dispatcher_type=alltoall.",
    fails={"moe_flex_dispatcher_backend": "hybridep", "moe_token_dispatcher_type": "flex", "gpu": "v100"},
    passes={"gpu": "gb200"},
)
def _hybridep_unsupported(moe_flex_dispatcher_backend, moe_token_dispatcher_type, *, gpu):
    compute_capability = capability(gpu)
    if (
        moe_token_dispatcher_type != "flex"
        or moe_flex_dispatcher_backend != "hybridep"
        or compute_capability is None
        or compute_capability[0] in (8, 9, 10)
    ):
        return None
    return f"hybridep does not run on {gpu}"


_OVER_ALL_TOKENS = ("sinkhorn", "quantile_balancing")


@model_rule(
    "G57",
    why="it assigns experts to all tokens of a microbatch together, so padding would change those of the others",
    fix="Use aux_loss, seq_aux_loss, global_aux_loss or none.",
    fails={
        "moe_router_load_balancing_type": "sinkhorn",
        "dataset__dataset_root": "/data",
        "num_moe_experts": 8,
    },
    passes={"moe_router_load_balancing_type": "seq_aux_loss"},
)
def _routing_over_all_tokens_in_fine_tuning(
    moe_router_load_balancing_type, dataset__dataset_root, num_moe_experts
):
    if (
        moe_router_load_balancing_type in _OVER_ALL_TOKENS
        and dataset__dataset_root is not None
        and num_moe_experts
    ):
        return f"is {moe_router_load_balancing_type} for fine-tuning"
    return None


@model_rule(
    "G11",
    why="the router selects among the existing experts",
    fix="Lower moe_router_topk or raise num_moe_experts.",
    fails={"moe_router_topk": 3, "num_moe_experts": 2},
    passes={"moe_router_topk": 2},
)
def _topk_outside_experts(moe_router_topk, num_moe_experts):
    if num_moe_experts is None or 1 <= moe_router_topk <= num_moe_experts:
        return None
    return (
        f"a token cannot use that many experts (moe_router_topk={moe_router_topk}, "
        f"num_moe_experts={num_moe_experts})"
    )


RULES: tuple[Rule, ...] = (
    in_range(
        "K14",
        "model.num_moe_experts",
        1,
        why="a layer with experts needs at least one",
        fix="Set a positive number, or leave it unset for a dense model.",
    ),
    *rules_in(globals()),
    in_range(
        "K16",
        "model.moe_shared_expert_intermediate_size",
        1,
        why="an expert without width computes nothing",
        fix="Set a positive width, or leave it unset for no shared expert.",
    ),
    requires(
        "K17",
        {"model.moe_shared_expert_overlap": True, "model.moe_shared_expert_intermediate_size": SET},
        {"model.moe_token_dispatcher_type": among("alltoall", "flex")},
        why="only these dispatchers overlap computation with the exchange of tokens",
        fix="Set moe_token_dispatcher_type to alltoall or flex, or moe_shared_expert_overlap=false.",
        fails={
            "model.moe_shared_expert_intermediate_size": 64,
            "model.moe_token_dispatcher_type": "allgather",
        },
        passes={"model.moe_token_dispatcher_type": "alltoall"},
    ),
    excludes(
        "G39",
        {"model.variable_seq_lengths": True, "model.moe_token_dispatcher_type": "allgather"},
        why="Megatron Core rejects this dispatcher, the default, with lengths that differ between microbatches",
        fix="Set model.moe_token_dispatcher_type=alltoall, or model.variable_seq_lengths=false.",
    ),
    requires(
        "K20",
        {"model.moe_pad_expert_input_to_capacity": True},
        {"model.moe_expert_capacity_factor": SET},
        why="there is no capacity to pad to",
        fix="Set moe_expert_capacity_factor, or moe_pad_expert_input_to_capacity=false.",
    ),
    requires(
        "K21",
        {"model.moe_router_enable_expert_bias": True},
        {"model.moe_router_score_function": among("sigmoid", "sqrtsoftplus")},
        why="the bias is added to scores that are independent of each other",
        fix="Set moe_router_score_function=sigmoid, or moe_router_enable_expert_bias=false.",
        fails={"model.moe_router_score_function": "softmax"},
        passes={"model.moe_router_score_function": "sigmoid"},
    ),
    no_effect(
        "G12",
        "model.num_moe_experts",
        {"model.moe_ffn_hidden_size": None, "model.moe_shared_expert_intermediate_size": None},
        why="without num_moe_experts the model is dense",
        fix="Set num_moe_experts, or unset the sizes.",
        fails={"model.moe_ffn_hidden_size": 64},
        passes={"model.num_moe_experts": 4},
    ),
)
