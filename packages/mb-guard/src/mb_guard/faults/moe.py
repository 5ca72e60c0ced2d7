"""Faults of the routers of experts: coefficients of balancing losses, counts of tokens, tokens that are dropped."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, around
from mb_guard.faults.rewriting import rewritten
from mb_guard.faults.step_tokens import COUNT_TOKENS_FIRST, current_step

MTP = "megatron.core.transformer.multi_token_prediction"
_ATTACH = ("attach_and_log_load_balancing_loss", "e1651c77aae55a44")
_TESTS = "packages/mb-guard/tests/test_moe.py"


@around
def scale_global_balancing(
    attach: Function,
    self: Any,
    activation: Any,
    coefficient: Any,
    loss: Any,
    name: str,
    *groups: Any,
    **options: Any,
) -> Any:
    """Undo the average over replicas of `global_aux_loss`, which is a sum over them; weight microbatches by tokens.

    The routed tokens of previous microbatches are divided by their own number, not by that of the current one.
    """
    if name == "global_load_balancing_loss":
        replicas = self.tp_dp_cp_group.size() // self.tp_cp_group.size()
        tokens = options["valid_token_count"] * self.tp_dp_cp_group.size()
        seen = self.global_tokens_per_expert.sum() / self.topk
        loss = loss * (tokens * self.ga_steps / seen.clamp(min=1)) * replicas
        coefficient = coefficient * replicas
    return attach(self, activation, coefficient, loss, name, *groups, **options)


@around
def scale_balancing_losses(
    attach: Function,
    self: Any,
    activation: Any,
    coefficient: Any,
    loss: Any,
    name: str,
    *groups: Any,
    **options: Any,
) -> Any:
    """Give balancing losses the coefficient that the user set, whatever the loss mask.

    All tokens that are routed count, also those that the loss mask leaves out, such as the prompts of fine-tuning: they
    use the same experts. Padding does not count. With `calculate_per_token_loss` the balancing loss of a microbatch (or
    of a sequence) has the weight of its tokens, and the sum over the step is divided by the tokens of all replicas; the
    same is logged. Megatron divides it by the tokens in the loss instead.
    """
    step = current_step()
    if step is not None and self.calculate_per_token_loss:
        tokens = options["valid_token_count"] * self.tp_cp_group.size()
        scale, share = step.scale[self.is_mtp_layer], tokens / step.routed[self.is_mtp_layer]
        loss = loss * scale
        coefficient = coefficient * scale / share.nan_to_num(nan=1.0)  # Megatron logs loss / coefficient
    return attach(self, activation, coefficient, loss, name, *groups, **options)


@around
def scale_z_loss(apply_z_loss: Function, self: Any, logits: Any, padding_mask: Any = None) -> Any:
    """Average the z-loss over all tokens of a step that are not padding, whatever the loss mask and the layout.

    Without `calculate_per_token_loss` it is the mean over microbatches of the mean over their tokens. Repeated layers
    of multi-token prediction count once.
    """
    import torch

    coefficient = self.config.moe_z_loss_coeff
    if coefficient is None or not self.training or not torch.is_grad_enabled():
        return logits
    names = apply_z_loss.__globals__
    values = torch.logsumexp(logits.float(), dim=-1).square()
    ranks, step = self.tp_cp_group.size(), current_step()
    tokens: Any = logits.shape[0] * ranks
    if padding_mask is not None:
        values = values * ~padding_mask
        tokens = (~padding_mask).sum().float()
        if ranks > 1:
            torch.distributed.all_reduce(tokens, group=self.tp_cp_group)
        tokens = tokens.clamp(min=1)
    own = values.sum()
    if self.is_mtp_layer and self.config.mtp_use_repeated_layer:
        own = own / (self.config.mtp_num_layers or 1)
    mean = own / tokens
    if not self.calculate_per_token_loss:
        attached = logged = mean
    elif step is None:
        attached, logged = own, mean
    else:
        attached = own * step.scale[self.is_mtp_layer]
        logged = mean * (tokens / step.routed[self.is_mtp_layer]).nan_to_num(nan=1.0)
    logits = names["MoEAuxLossAutoScaler"].apply(logits, coefficient * attached)
    layers, ahead = self.config.num_layers, self.config.mtp_num_layers or 0
    names["get_moe_metrics_tracker"]().record(
        "z_loss",
        logged * ranks,
        self.layer_number + layers if self.is_mtp_layer else self.layer_number,
        layers + ahead,
        avg_group=self.tp_dp_cp_group,
    )
    return logits


@around
def counts_in_float32(maintain: Function, self: Any) -> None:
    """Keep the counts of tokens in float32 when a model is converted: bfloat16 cannot count beyond 256."""
    import torch

    maintain(self)
    for name in ("local_tokens_per_expert", "global_tokens_per_expert", "ga_steps"):
        counts = getattr(self, name, None)
        if counts is not None and counts.dtype != torch.float32:
            counts.data = counts.data.to(torch.float32)


@around
def jitter_in_training(apply_input_jitter: Function, self: Any, hidden: Any) -> Any:
    """Leave the input of a router as it is in evaluation."""
    return apply_input_jitter(self, hidden) if self.training else hidden


def drop_the_last(drop: Function) -> Function:
    """Keep the first tokens of each expert: torch.topk returns equal values in any order."""
    return rewritten(
        drop,
        ("routing_map.int(), k=expert_capacity", "mb_guard_in_order(routing_map), k=expert_capacity"),
        mb_guard_in_order=_in_order,
    )


def _in_order(routing_map: Any) -> Any:
    """Return values that fall with the position, those of tokens of an expert above all others."""
    import torch

    number = routing_map.shape[0]
    position = torch.arange(number, device=routing_map.device)[:, None]
    return routing_map * number + (number - 1 - position)


@around
def number_prediction_layers(init: Function, self: Any, *inputs: Any, **options: Any) -> None:
    """Mark the routers of a hybrid's multi-token prediction, and give them the number of their depth.

    Megatron numbers them from 1 like those of the decoder, and logs them there. Marked routers of repeated layers count
    once in the balancing losses.
    """
    init(self, *inputs, **options)
    if options.get("mtp_layer_pattern") is None:
        return
    for module in self.mtp_model_layer.modules():
        if hasattr(module, "attach_and_log_load_balancing_loss"):
            module.is_mtp_layer, module.layer_number = True, self.layer_number


@around
def draw_own_experts(
    init: Function, self: Any, number: int, config: Any, *inputs: Any, **options: Any
) -> None:
    """Draw experts on the host from a stream of this expert-parallel rank; afterwards all ranks are at one place."""
    import torch

    group = (options.get("pg_collection") or inputs[1]).ep
    if not config.use_cpu_initialization or group.size() == 1:
        init(self, number, config, *inputs, **options)
        return
    seed = int(torch.randint(2**31, (), device="cpu"))
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed + group.rank())
        init(self, number, config, *inputs, **options)


def router_patch(wrap: Function, method: str, source: str) -> Patch:
    """Return the patch of a method of `TopKRouter`."""
    module = "megatron.core.transformer.moe.router"
    return Patch(wrap=wrap, module=module, target=f"TopKRouter.{method}", sources=(source,))


FAULTS = (
    Fault(
        id="tokens-dropped-at-random",
        effect="wrong number",
        summary="moe_token_drop_policy=position drops any tokens beyond the capacity of an expert, not the last ones: "
        "it takes the order of equal values from torch.topk, which has none.",
        shows="Silent: of 256 tokens with a capacity of 32, none of the first 32 of an expert is kept on a CPU.",
        action="put right",
        test=f"{_TESTS}::test_the_last_tokens_are_dropped",
        met=lambda settings: settings.moe_token_drop_policy == "position",
        patches=(
            Patch(
                wrap=drop_the_last,
                module="megatron.core.transformer.moe.moe_utils",
                target="apply_router_token_dropping",
                sources=("9a62ba54d6ce267d",),
            ),
        ),
    ),
    Fault(
        id="jitter-in-evaluation",
        effect="wrong number",
        summary="moe_input_jitter_eps multiplies the input of routers by noise in evaluation as well.",
        shows="Silent: two evaluations of the same tokens differ (with 0.1, logits of a small random model by 0.01), "
        "and validation draws from the random state of training.",
        action="put right",
        test=f"{_TESTS}::test_routers_have_no_noise_in_evaluation",
        met=lambda settings: bool(settings.moe_input_jitter_eps),
        patches=(router_patch(jitter_in_training, "apply_input_jitter", "b44d1365f5345bec"),),
    ),
    Fault(
        id="expert-counts-in-bf16",
        effect="wrong number",
        summary="A model in bfloat16 counts the tokens of each expert in bfloat16, which cannot count beyond 256.",
        shows="Silent. moe_router_enable_expert_bias: [1680, 1584, 1400, 1464] for [1686, 1587, 1405, 1466] tokens; in "
        "a simulation of 256 experts 11 to 17 % of the updates of the bias have the wrong sign. The counts of "
        "global_aux_loss are rounded too.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/7081",
        test=f"{_TESTS}::test_tokens_are_counted_exactly_in_bfloat16",
        patches=(router_patch(counts_in_float32, "_maintain_float32_expert_bias", "54bceb9aba5c683e"),),
    ),
    Fault(
        id="global-aux-loss-scale",
        effect="wrong number",
        summary="global_aux_loss trains with moe_aux_loss_coeff divided by the number of replicas, and divides the "
        "counts of previous microbatches by the tokens of the current one.",
        shows="Silent; the logged loss is right. With 64 replicas a coefficient of 0.01 trains as 0.00016.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/3672",
        test=f"{_TESTS}::test_global_balancing_does_not_depend_on_replicas",
        patches=(router_patch(scale_global_balancing, *_ATTACH),),
    ),
    Fault(
        id="balancing-under-loss-masks",
        effect="wrong number",
        summary="With calculate_per_token_loss the balancing losses and the z-loss of routers are multiplied by the "
        "tokens of a step divided by those in the loss.",
        shows="Silent; the logged losses are right. Fine-tuning on answers of an eighth of the tokens trains with 8 "
        "times moe_aux_loss_coeff and moe_z_loss_coeff.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/1984",
        test=f"{_TESTS}::test_balancing_does_not_depend_on_the_loss_mask",
        patches=(
            *COUNT_TOKENS_FIRST,
            router_patch(scale_balancing_losses, *_ATTACH),
            router_patch(scale_z_loss, "apply_z_loss", "54b4d71d1c8d9616"),
        ),
    ),
    Fault(
        id="hybrid-prediction-layers",
        effect="wrong number",
        summary="Experts in the multi-token prediction of a hybrid are logged under layers of the decoder.",
        shows="moe_per_layer_logging with hybrid_layer_pattern M*E/*E: layer_1, an attention layer, has the balancing "
        "loss of the prediction, whose own layer_3 is 0. With mtp_use_repeated_layer they count once for each depth.",
        action="put right",
        report="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5794",
        test=f"{_TESTS}::test_experts_of_a_hybrids_prediction_have_their_own_layer",
        patches=(
            Patch(
                wrap=number_prediction_layers,
                module=MTP,
                target="MultiTokenPredictionLayer.__init__",
                sources=("c2ba75e796aefa47",),
            ),
        ),
    ),
    Fault(
        id="equal-experts-on-all-ranks",
        effect="wrong number",
        summary="With use_cpu_initialization all expert-parallel ranks draw the same weights for their experts.",
        shows="Silent: 4 experts on 2 ranks are two pairs of equal ones, which only their tokens train apart.",
        action="put right",
        test=f"{_TESTS}::test_experts_of_all_ranks_are_different",
        met=lambda settings: (
            bool(settings.use_cpu_initialization) and (settings.expert_model_parallel_size or 1) > 1
        ),
        patches=tuple(
            Patch(
                wrap=draw_own_experts,
                module="megatron.core.transformer.moe.experts",
                target=f"{experts}.__init__",
                sources=(source,),
            )
            for experts, source in (
                ("SequentialMLP", "ce723a932a27efae"),
                ("TEGroupedMLP", "c21acbd730f89bcc"),
            )
        ),
    ),
)
