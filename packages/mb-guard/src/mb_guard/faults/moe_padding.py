"""Faults of experts with padding and packs: what is routed, counted and balanced, and how the mask reaches routers."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.moe import MTP, router_patch
from mb_guard.faults.rewriting import rewritten

_TESTS = "packages/mb-guard/tests/test_moe.py"


def padding_without_capacity(routing: Function) -> Function:
    """Route padding to no expert before tokens beyond the capacity of experts are dropped."""
    return rewritten(
        routing,
        (
            "apply_router_token_dropping(\n            probs,\n            routing_map,",
            "apply_router_token_dropping(\n            *mb_guard_tokens(probs, routing_map, padding_mask),",
        ),
        mb_guard_tokens=_tokens,
    )


def _tokens(probs: Any, routing_map: Any, padding_mask: Any) -> tuple[Any, Any]:
    if padding_mask is None:
        return probs, routing_map
    valid = ~padding_mask.reshape(-1, 1)
    return probs * valid, routing_map & valid


@around
def expert_bias_with_padding(
    apply_expert_bias: Function, self: Any, routing_map: Any, padding_mask: Any = None
) -> Any:
    """Count the tokens of each expert without padding: the mask of tokens is applied to all experts."""
    if padding_mask is not None and padding_mask.dim() == 1:
        padding_mask = padding_mask.unsqueeze(-1)
    return apply_expert_bias(self, routing_map, padding_mask=padding_mask)


@around
def mean_token_count(
    count: Function, routing_map: Any, reduce_group: Any, topk: Any = None, with_padding_mask: bool = False
) -> tuple[Any, Any, Any]:
    """Return the mean number of tokens of a rank instead of its own, because callers multiply it by the ranks."""
    counts, own, total = count(routing_map, reduce_group, topk, with_padding_mask)
    if with_padding_mask:
        own, total = total / reduce_group.size(), total.clamp(min=1)  # a microbatch may be all padding
    return counts, own, total


@around
def sequence_balancing(
    apply_seq_aux_loss: Function,
    self: Any,
    probs: Any,
    scores: Any,
    routing_map: Any,
    seq_length: int,
    bsz: int,
    with_padding_mask: bool = False,
) -> Any:
    """Balance each sequence over its own tokens: in rows with padding, and in packs.

    With `calculate_per_token_loss` each token has the same weight, so a pack counts as its sequences in separate
    microbatches; otherwise each sequence has.
    """
    import torch

    coefficient = self.get_aux_loss_coeff("seq_aux_loss")
    if coefficient == 0 or not with_padding_mask:
        return apply_seq_aux_loss(
            self, probs, scores, routing_map, seq_length, bsz, with_padding_mask=with_padding_mask
        )
    routed = routing_map.float()
    if (sequences := getattr(self, "_sequences", None)) is None:
        counts, sums = (each.view(seq_length, bsz, -1).sum(0) for each in (routed, scores))
    else:
        index, number = sequences
        counts, sums = (
            each.new_zeros(number, each.shape[-1]).index_add(0, index, each) for each in (routed, scores)
        )
    if self.tp_cp_group.size() > 1:
        torch.distributed.all_reduce(counts, group=self.tp_cp_group)
    tokens = counts.sum(-1) / self.topk
    losses = (counts * sums).sum(-1) / tokens.clamp(min=1).square()
    losses = losses * (self.config.num_moe_experts * coefficient / self.topk)
    weights = tokens if self.calculate_per_token_loss else (tokens > 0).float()
    return self.attach_and_log_load_balancing_loss(
        probs,
        coefficient,
        (losses * weights).sum() / weights.sum().clamp(min=1),
        "seq_load_balancing_loss",
        self.tp_cp_group,
        valid_token_count=tokens.sum() / self.tp_cp_group.size(),
    )


@around
def read_sequences(routing: Function, self: Any, logits: Any, padding_mask: Any = None) -> Any:
    """Take the sequences of a pack off the padding mask, where `local_padding_mask` has put them."""
    batch = logits.shape[1]
    if padding_mask is None or padding_mask.shape[-1] == batch:
        return routing(self, logits, padding_mask=padding_mask)
    bits = padding_mask[:, batch:].long()
    index = sum(bits[:, bit] << bit for bit in range(bits.shape[1]))
    self._sequences = index, 1 << bits.shape[1]
    try:
        return routing(self, logits, padding_mask=padding_mask[:, :batch].contiguous())
    finally:
        self._sequences = None


@around
def split_padding_mask(
    preprocess: Function,
    self: Any,
    input_ids: Any,
    position_ids: Any,
    decoder_input: Any = None,
    inference_context: Any = None,
    packed_seq_params: Any = None,
    padding_mask: Any = None,
) -> Any:
    """Split the padding mask of a GPT like its hidden states, on every stage, and mark the sequences of packs in it."""
    outputs = preprocess(self, input_ids, position_ids, decoder_input, inference_context, packed_seq_params)
    hidden = outputs[0] if outputs[0] is not None else self.decoder.input_tensor
    mask = local_padding_mask(self, padding_mask, packed_seq_params, hidden)
    return (*outputs[:5], mask, *outputs[6:])


@around
def split_hybrid_padding_mask(
    forward: Function, self: Any, input_ids: Any, *inputs: Any, **options: Any
) -> Any:
    """Split the padding mask of a hybrid like its hidden states, and pass it to its multi-token prediction."""
    hidden = options.get("decoder_input")
    if not self.pre_process:
        hidden = self.decoder.input_tensor
    options["padding_mask"] = mask = local_padding_mask(
        self, options.get("padding_mask"), options.get("packed_seq_params"), hidden, input_ids=input_ids
    )
    if (ahead := getattr(self, "mtp", None)) is not None:
        ahead._padding_mask = mask
    try:
        return forward(self, input_ids, *inputs, **options)
    finally:
        if ahead is not None:
            ahead._padding_mask = None


@around
def pass_hybrid_padding_mask(forward: Function, self: Any, *inputs: Any, **options: Any) -> Any:
    """Pass the padding mask of a hybrid to the layers of multi-token prediction."""
    if options.get("padding_mask") is None and len(inputs) < 5:
        options["padding_mask"] = getattr(self, "_padding_mask", None)
    return forward(self, *inputs, **options)


def local_padding_mask(
    model: Any, padding_mask: Any, packed_seq_params: Any, hidden: Any, *, input_ids: Any = None
) -> Any:
    """Return the padding mask of the tokens on this rank, with the sequences of a pack in further rows.

    `padding_mask` is [B, S] of this context-parallel rank; on stages where the caller has split it for sequence
    parallelism already, as Megatron-Bridge does, it is left as it is.
    """
    import torch

    config, group = model.config, model.pg_collection.tp
    packed = _has_sequences(model, packed_seq_params)
    if padding_mask is None and not packed:
        return None
    parts = group.size() if config.sequence_parallel else 1

    def part(rows: Any) -> Any:
        return rows.chunk(parts, dim=-1)[group.rank()].contiguous() if parts > 1 else rows

    length = hidden.shape[0] if hidden is not None else input_ids.shape[-1] // parts
    sequences: Any = _sequence_bits(model, packed_seq_params, length * parts) if packed else None
    if padding_mask is None:
        padding_mask = part(torch.zeros_like(sequences[:1]))
    else:
        padding_mask = padding_mask.bool()
        if padding_mask.shape[-1] != length:
            padding_mask = part(padding_mask)
        if padding_mask.shape[-1] != length:
            raise ValueError(
                f"padding_mask: has {padding_mask.shape[-1]} tokens on this rank, but the hidden states have {length}. "
                "Pass the mask of the tokens of this context-parallel rank, [B, S]."
            )
    return padding_mask if sequences is None else torch.cat([padding_mask, part(sequences)])


def _has_sequences(model: Any, packed_seq_params: Any) -> bool:
    """Return whether routers balance the sequences of a pack, which Megatron does not separate itself."""
    kinds = model.config.moe_router_load_balancing_type
    return bool(
        model.training
        and model.config.num_moe_experts
        and "seq_aux_loss" in ([kinds] if isinstance(kinds, str) else kinds)
        and packed_seq_params is not None
        and packed_seq_params.cu_seqlens_q is not None
        and getattr(packed_seq_params, "tokens_per_sample", None) is None
    )


def _sequence_bits(model: Any, packed_seq_params: Any, length: int) -> Any:
    """Return the number of the sequence of each of the tokens of a pack, a row for each binary digit.

    So they pass through checkpointed layers with the padding mask, which is boolean. A context-parallel rank has an
    equal part of each sequence, in the order of the sequences.
    """
    import torch

    padded = getattr(packed_seq_params, "cu_seqlens_q_padded", None)
    ends = (packed_seq_params.cu_seqlens_q if padded is None else padded)[1:] // model.pg_collection.cp.size()
    index = torch.searchsorted(ends, torch.arange(length, device=ends.device, dtype=ends.dtype), right=True)
    return torch.stack([(index >> bit) & 1 for bit in range(len(ends).bit_length())]).bool()


def route_with_padding(build_callables: Function) -> Function:
    """Pass the padding mask of a chunk to its routers in the schedule that overlaps the communication of experts."""
    return rewritten(
        build_callables,
        (
            "layer.mlp.route(pre_mlp_layernorm_output)",
            "layer.mlp.route(\n"
            "                    pre_mlp_layernorm_output, mb_guard_padding(node.chunk_state)\n"
            "                )",
        ),
        mb_guard_padding=_padding_of_chunk,
    )


def _padding_of_chunk(state: Any) -> Any:
    mask = getattr(state, "padding_mask", None)
    return None if mask is None else mask.transpose(0, 1)


@around
def roll_padding_mask(
    get_embeddings: Function,
    self: Any,
    *inputs: Any,
    padding_mask: Any = None,
    packed_seq_params: Any = None,
    **options: Any,
) -> Any:
    """Roll the padding mask of multi-token prediction over the complete sequence; what is rolled in is padding."""
    import torch

    ids, positions, _, decoder_input, hidden = get_embeddings(
        self, *inputs, packed_seq_params=packed_seq_params, **options
    )
    if padding_mask is None:
        return ids, positions, None, decoder_input, hidden
    group, rows = self.tp_group, ids.shape[0]
    valid = (~padding_mask[:rows]).to(torch.uint8)
    split = self.config.sequence_parallel and group.size() > 1
    if split:
        parts = [torch.empty_like(valid) for _ in range(group.size())]
        torch.distributed.all_gather(parts, valid.contiguous(), group=group)
        valid = torch.cat(parts, dim=-1)
    valid, _ = get_embeddings.__globals__["roll_tensor"](
        valid, shifts=-1, dims=-1, cp_group=self.cp_group, packed_seq_params=packed_seq_params
    )
    if split:
        valid = valid.chunk(group.size(), dim=-1)[group.rank()]
    mask = torch.cat([valid == 0, padding_mask[rows:]])
    return ids, positions, mask, decoder_input, hidden


def _too_few_tokens(settings: Settings) -> bool:
    """Return whether the tokens of a rank are no multiple of what each expert is padded to."""
    if (
        not (settings.moe_router_padding_for_quantization or settings.moe_router_padding_for_fp8)
        or not settings.seq_length
    ):
        return False
    ranks = (settings.context_parallel_size or 1) * (
        settings.tensor_model_parallel_size or 1 if settings.sequence_parallel else 1
    )
    multiple = 32 if settings.fp4 or settings.fp8_recipe == "mxfp8" else 16
    if settings.use_transformer_engine_op_fuser:
        multiple = 256
    tokens: int = settings.seq_length * (settings.micro_batch_size or 1) // ranks
    return tokens % multiple != 0


FAULTS = (
    Fault(
        id="expert-padding-too-short",
        effect="crash",
        summary="moe_router_padding_for_quantization cannot pad an expert to more tokens than the rank has, and leaves "
        "its count unaligned.",
        shows="Silent in the router: an expert with 90 of 100 tokens gets 100 instead of 128. The quantized product "
        "requires aligned counts.",
        action="warn",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6086",
        test=f"{_TESTS}::test_padding_of_experts_ends_with_the_tokens",
        met=_too_few_tokens,
        advice="Make seq_length * micro_batch_size of a rank a multiple of 32 (256 with "
        "use_transformer_engine_op_fuser).",
    ),
    Fault(
        id="padding-takes-capacity",
        effect="wrong number",
        summary="With moe_expert_capacity_factor, padding is routed and takes the capacity of experts from tokens.",
        shows="Silent: of 8 tokens, the first 4 of them padding, and a capacity of 4 by position, all others are "
        "dropped.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5542",
        test=f"{_TESTS}::test_padding_takes_no_capacity",
        patches=(router_patch(padding_without_capacity, "routing", "a793cc0a1b8827f5"),),
    ),
    Fault(
        id="expert-bias-padding",
        effect="crash",
        summary="A padding mask with moe_router_enable_expert_bias ends in a shape error in the router.",
        shows="RuntimeError: the size of tensor a must match the size of tensor b, in TopKRouter._apply_expert_bias.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6111",
        test=f"{_TESTS}::test_expert_bias_counts_tokens_that_are_not_padding",
        patches=(router_patch(expert_bias_with_padding, "_apply_expert_bias", "5492673fff3cdc97"),),
    ),
    Fault(
        id="padding-mask-layout",
        effect="wrong number",
        summary="Routers count padding wrongly: the padding mask is not split for sequence parallelism on later stages "
        "and in hybrids, nor rolled over all of a sequence in multi-token prediction; seq_aux_loss divides by the mean "
        "length of a batch, takes a pack for one sequence, and context-parallel ranks use their own counts.",
        shows="A shape error on later stages and in hybrids; else silent. Two sequences in a pack instead of rows: the "
        "balancing gradient is 1.222 times as long, with a cosine of 0.778.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6108",
        test=f"{_TESTS}::test_padding_does_not_change_balancing",
        patches=(
            Patch(
                wrap=mean_token_count,
                module="megatron.core.transformer.moe.moe_utils",
                target="get_tokens_per_expert_and_token_count",
                sources=("90c32c67f581d313",),
            ),
            Patch(
                wrap=split_padding_mask,
                module="megatron.core.models.gpt.gpt_model",
                target="GPTModel._preprocess",
                sources=("0d1c437048352f5b",),
            ),
            Patch(
                wrap=split_hybrid_padding_mask,
                module="megatron.core.models.hybrid.hybrid_model",
                target="HybridModel.forward",
                sources=("b30e12d50eae86a4",),
            ),
            Patch(
                wrap=pass_hybrid_padding_mask,
                module=MTP,
                target="MultiTokenPredictionBlock.forward",
                sources=("9bfb76854a56af4a", "52fcc0224485f910"),
            ),
            Patch(
                wrap=roll_padding_mask,
                module=MTP,
                target="MultiTokenPredictionLayer._get_embeddings",
                sources=("c259ccb9449059f2",),
            ),
            Patch(
                wrap=route_with_padding,
                module="megatron.core.models.gpt.fine_grained_callables",
                target="build_transformer_layer_callables",
                sources=("3075e142906337f1",),
            ),
            router_patch(read_sequences, "routing", "a793cc0a1b8827f5"),
            router_patch(sequence_balancing, "_apply_seq_aux_loss", "c61fd3b6c45ffa62"),
        ),
    ),
)
