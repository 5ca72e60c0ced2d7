"""Functions that run on a rank for the tests of the layers, compared to Megatron's layers."""

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from mb_host.megatron.layers import HostCoreAttention, HostNorm, host_block_spec, host_layer_spec

SEQUENCE, BATCH, HEADS, GROUPS, CHANNELS = 16, 2, 4, 2, 8


def config(**changes) -> TransformerConfig:
    settings = {
        "num_layers": 4,
        "hidden_size": 24,  # not HEADS * CHANNELS
        "num_attention_heads": HEADS,
        "num_query_groups": GROUPS,
        "kv_channels": CHANNELS,
        "normalization": "RMSNorm",
        "attention_dropout": 0.0,
        "masked_softmax_fusion": False,
        "transformer_impl": "local",
    }
    return TransformerConfig(**{**settings, **changes})


def attention(kind: type, **changes) -> torch.nn.Module:
    parallel_state.initialize_model_parallel(changes.get("tensor_model_parallel_size", 1))
    tensor_parallel.model_parallel_cuda_manual_seed(3)
    return kind(
        config=config(**changes),
        layer_number=1,
        attn_mask_type=AttnMaskType.causal,
        attention_type="self",
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )


def attend(
    module: torch.nn.Module, *, masked: bool = False, seen_before: int = SEQUENCE
) -> tuple[torch.Tensor, ...]:
    """Return the attention output for fixed 64-bit tensors, and the three gradients of its sum of squares."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(SEQUENCE, BATCH, heads, CHANNELS) for heads in (HEADS, GROUPS, GROUPS)]
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    ]
    mask = None
    if masked:  # two documents
        position = torch.arange(SEQUENCE)
        mask = (position[:, None] < position) | ((position[:, None] < 5) != (position < 5))
        mask |= position[:, None] - position > seen_before
    output = module(*inputs, mask)
    return output, *torch.autograd.grad(output.square().sum(), inputs)


def largest_difference(masked: bool, changes: dict) -> float:
    """Compare output and gradients of HostCoreAttention to Megatron's attention."""
    expected = attend(attention(DotProductAttention, **changes), masked=masked)
    parallel_state.destroy_model_parallel()
    found = attend(attention(HostCoreAttention, **changes), masked=masked)
    return max((one - other).abs().max().item() for one, other in zip(expected, found, strict=True))


def largest_difference_in_a_masked_window() -> float:
    """Compare a window with a mask to Megatron's attention under one combined mask."""
    expected = attend(attention(DotProductAttention), masked=True, seen_before=4)
    parallel_state.destroy_model_parallel()
    found = attend(attention(HostCoreAttention, window_size=(4, 0)), masked=True)
    return max((one - other).abs().max().item() for one, other in zip(expected, found, strict=True))


def largest_difference_in_a_window_of_both_sides() -> float:
    """Compare attention that is not causal, in a window, to Megatron's under a mask of what is outside."""
    distance = torch.arange(SEQUENCE)[:, None] - torch.arange(SEQUENCE)
    results = []
    for kind, window, mask in (
        (DotProductAttention, None, (distance > 4) | (distance < -2)),
        (HostCoreAttention, (4, 2), None),
    ):
        module = attention(kind, **({"window_size": window} if window else {}))
        module.attn_mask_type = AttnMaskType.no_mask if window else AttnMaskType.arbitrary
        generator = torch.Generator().manual_seed(7)
        query, key, value = (
            torch.randn(SEQUENCE, BATCH, heads, CHANNELS, generator=generator)
            for heads in (HEADS, GROUPS, GROUPS)
        )
        if not window:
            module.scale_mask_softmax.attn_mask_type = AttnMaskType.arbitrary
        results.append(module(query, key, value, mask, module.attn_mask_type))
        parallel_state.destroy_model_parallel()
    return (results[0] - results[1]).abs().max().item()


def dropped() -> dict:
    """Draw dropout on each tensor-parallel rank."""
    module = attention(HostCoreAttention, tensor_model_parallel_size=2, attention_dropout=0.5)
    before = torch.get_rng_state()
    first, second = attend(module)[0], attend(module)[0]
    return {
        "host's state is kept": torch.equal(before, torch.get_rng_state()),
        "each call draws new values": not torch.equal(first, second),
        "without training nothing is dropped": torch.equal(attend(module.eval())[0], attend(module)[0]),
        "sum": first.sum().item(),
    }


def norms() -> list:
    made = [HostNorm(config(normalization=name), 8) for name in ("LayerNorm", "RMSNorm")]
    marked = HostNorm(config(tensor_model_parallel_size=2, sequence_parallel=True), 8, eps=1e-6)
    return [type(norm).__name__ for norm in made] + [
        [parameter.sequence_parallel for parameter in marked.parameters()],
        marked.eps,
    ]


def zero_centred(normalization: str) -> list:
    """Return the initial weight of a zero-centred norm, and whether it computes the plain norm with that plus one."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    centred = HostNorm(config(normalization=normalization, layernorm_zero_centered_gamma=True), 8)
    plain = HostNorm(config(normalization=normalization), 8)
    start = centred.weight.tolist()
    with torch.no_grad():
        centred.weight += 0.25
        plain.weight += 0.25
    return [start, torch.equal(centred(x), plain(x)), centred(x.bfloat16()).dtype]


def stored_names_of_norms():
    """Return the checkpoint names of norms of a dense and an expert layer, by kind of attention."""
    kinds = {
        "plain": config(num_moe_experts=4),
        "latent": latent_config(qk_layernorm=False),
        "latent, normalised": latent_config(qk_layernorm=True),
    }
    return {
        kind: [
            dict(host_layer_spec(settings, num_experts=experts).submodules.sharded_state_dict_keys_map)
            for experts in (None, 4)
        ]
        for kind, settings in kinds.items()
    }


def latent_config(**settings):
    """Return the settings of a small model with latent attention and experts."""
    return MLATransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=4, num_moe_experts=4, q_lora_rank=16, **settings
    )


def parts_of_specs() -> dict:
    """Return the names of the classes in the specs."""
    settings = config(
        num_moe_experts=4,
        moe_layer_freq=[0, 1, 0, 1],
        pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
    )
    block = host_block_spec(settings, pp_rank=1)
    layer = host_layer_spec(config(qk_layernorm=True)).submodules
    core = layer.self_attention.submodules
    kept = host_layer_spec(config(softmax_type="off-by-one")).submodules.self_attention.submodules
    return {
        "layers of a stage": [
            spec.submodules.mlp.func.__qualname__.split(".")[0] for spec in block.layer_specs
        ],
        "final norm": block.layer_norm.__name__,
        "norms": [layer.input_layernorm.__name__, layer.pre_mlp_layernorm.__name__],
        "query and key norms": [core.q_layernorm.__name__, core.k_layernorm.__name__],
        "attention": core.core_attention.__name__,
        "attention with sinks": kept.core_attention.__name__,
    }


def unsupported(case: str) -> None:
    """Call a layer with an unsupported option."""
    unsupported_calls = {
        "normalization": lambda: HostNorm(config(normalization="L2Norm"), 8),
        "sinks": lambda: attention(HostCoreAttention, softmax_type="off-by-one"),
        "ignored": lambda: host_layer_spec(config(qk_l2_norm=True)),
        "ignored in a block": lambda: host_block_spec(config(fused_residual_rmsnorm=True), pp_rank=0),
        "bias": lambda: attention(HostCoreAttention)(*(torch.ones(2, 1, 4, 8),) * 3, None, attention_bias=1),
        "mask": lambda: attention(HostCoreAttention)(*(torch.ones(2, 1, 4, 8),) * 3, torch.ones(1, 2).long()),
        "packed": lambda: attention(HostCoreAttention)(
            *(torch.ones(2, 4, 8),) * 3,
            torch.ones(2, 2, dtype=torch.bool),
            packed_seq_params=PackedSeqParams(),
        ),
    }
    unsupported_calls[case]()


def packed_and_separate() -> float:
    """Return the largest difference between packed and separate sequences; the second sequence is empty."""
    module = attention(HostCoreAttention)
    lengths = [5, 0, SEQUENCE - 5]
    generator = torch.Generator().manual_seed(7)
    inputs = [
        torch.randn(SEQUENCE, heads, CHANNELS, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    borders = torch.tensor([0, 5, 5, SEQUENCE])
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders)
    together = module(*inputs, None, packed_seq_params=packed)
    parts = [
        module(*(each[:, None] for each in part), None)[:, 0]
        for part in zip(*(torch.split(each, lengths) for each in inputs), strict=True)
        if len(part[0])
    ]
    outcomes = [
        (each, *torch.autograd.grad(each.square().sum(), inputs)) for each in (together, torch.cat(parts))
    ]
    return max((one - other).abs().max().item() for one, other in zip(*outcomes, strict=True))


def packed_under_context_parallelism() -> float:
    """Return the largest difference between this rank's part of packed sequences and that of each one alone."""
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    module = HostCoreAttention(config(context_parallel_size=2), 1, AttnMaskType.causal, "self")
    generator = torch.Generator().manual_seed(7 + parallel_state.get_context_parallel_rank())
    lengths = [4, 0, 2]  # on this rank; twice as many on both
    inputs = [
        torch.randn(6, heads, CHANNELS, generator=generator, dtype=torch.float64)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    borders = torch.tensor([0, 8, 8, 12])
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders)
    together = module(*inputs, None, packed_seq_params=packed)
    parts = [
        module(*(each[:, None] for each in part), None)[:, 0]
        for part in zip(*(torch.split(each, lengths) for each in inputs), strict=True)
        if len(part[0])
    ]
    return (together - torch.cat(parts)).abs().max().item()


def mask_under_context_parallelism() -> None:
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    module = HostCoreAttention(config(context_parallel_size=2), 1, AttnMaskType.causal, "self")
    module(*(torch.ones(2, 1, 4, 8),) * 3, torch.ones(2, 2, dtype=torch.bool))
