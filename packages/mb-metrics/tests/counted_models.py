"""Megatron's real models on the host, run under torch's FLOP counter; imported by the ranks."""

from dataclasses import dataclass, field

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_local_block_spec,
    get_t5_encoder_with_local_block_spec,
)
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mb_host.megatron.layers import host_block_spec
from mb_metrics import model_flops_per_token

VOCABULARY, SEQUENCE, DECODER_SEQUENCE, BATCH = 96, 32, 16, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, as differences from a small dense GPT."""

    settings: dict = field(default_factory=dict)
    latent: bool = False


_EXPERTS = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 48,
    "moe_router_load_balancing_type": "none",
    "moe_token_dispatcher_type": "alltoall",
}
_LATENT = {
    "multi_latent_attention": True,
    "kv_lora_rank": 24,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 12,
    "rope_type": "rope",
}
_SHARED = {"moe_shared_expert_intermediate_size": 40, "moe_layer_freq": [0, 1, 1]}
CASES = {
    "dense": Case(),
    "grouped, gated, wide heads": Case(
        settings={"num_query_groups": 2, "kv_channels": 24, "gated_linear_unit": True}
    ),
    "latent": Case(settings={**_LATENT, "q_lora_rank": None}, latent=True),
    "latent, low-rank queries": Case(settings={**_LATENT, "q_lora_rank": 20}, latent=True),
    "experts": Case(settings=_EXPERTS),
    "latent, shared experts, first layer dense": Case(
        settings={**_LATENT, **_EXPERTS, **_SHARED, "q_lora_rank": 20, "gated_linear_unit": True}, latent=True
    ),
    "two more tokens predicted": Case(settings={"mtp_num_layers": 2}),
    "output gate": Case(settings={"attention_output_gate": True}),
}


def count_all(rank_of_case):
    """Return by name torch's count and the formula's result per token, for the cases of this rank."""
    rank = torch.distributed.get_rank()
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    counted = {name: _count_gpt(case) for name, case in CASES.items() if rank_of_case[name] == rank}
    return counted | ({"t5": _count_t5()} if rank_of_case["t5"] == rank else {})


def _config(case: Case) -> TransformerConfig:
    settings = {
        "num_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "ffn_hidden_size": 160,
        "add_bias_linear": False,
        "transformer_impl": "local",
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        **case.settings,
    }
    return (MLATransformerConfig if case.latent else TransformerConfig)(**settings)


def _count_gpt(case: Case):
    config = _config(case)
    spec = host_block_spec(config)
    prediction = (
        get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if config.mtp_num_layers else None
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=prediction,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type="rope",
    )
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
    counted = _counted(lambda: model(tokens, positions, None, labels=tokens).sum())
    formula = model_flops_per_token(config, seq_length=SEQUENCE, vocab_size=VOCABULARY, causal=False)
    return counted / (BATCH * SEQUENCE), formula


def _count_t5():
    config = _config(Case())
    model = T5Model(
        config=config,
        encoder_config=_config(Case(settings={"num_layers": 2})),
        transformer_encoder_layer_spec=get_t5_encoder_with_local_block_spec(2),
        transformer_decoder_layer_spec=get_t5_decoder_with_local_block_spec(3),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        share_embeddings_and_output_weights=True,
    )
    encoder = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    decoder = torch.randint(0, VOCABULARY, (BATCH, DECODER_SEQUENCE))

    def mask(queries, keys):
        return torch.zeros(BATCH, 1, queries, keys, dtype=torch.bool)

    counted = _counted(
        lambda: model(
            encoder,
            decoder,
            mask(SEQUENCE, SEQUENCE),
            mask(DECODER_SEQUENCE, DECODER_SEQUENCE),
            mask(DECODER_SEQUENCE, SEQUENCE),
            lm_labels=decoder,
        ).sum()
    )
    formula = model_flops_per_token(
        {**vars(config), "encoder_num_layers": 2},
        seq_length=SEQUENCE,
        decoder_seq_length=DECODER_SEQUENCE,
        vocab_size=VOCABULARY,
        causal=False,
    )
    return counted / (BATCH * SEQUENCE), formula


def _counted(loss) -> int:
    """Run forward and backward; attention by plain matrix products, which the counter supports."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss().backward()
    return counter.get_total_flops()
