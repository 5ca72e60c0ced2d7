"""Small Megatron models, and any rank of them in one process, with process groups that do not communicate."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from mb_host.megatron.layers import HostNorm, host_block_spec
from mb_models.gpt.layer_variants import apply_layer_variants
from mb_models.gpt.variant_fields import LayerVariantFields
from mb_models.provider import drop_unused_output_weight

TP, PP, VP, EP, ETP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
DENSE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "ffn_hidden_size": 96,
    "vocab_size": 256,
    "seq_length": 32,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
    "transformer_impl": "local",
}
MODERN = {
    **DENSE,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "num_query_groups": 2,
}
MOE = {
    **MODERN,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 48,
    "moe_token_dispatcher_type": "alltoall",
}
SHARED = {**MOE, "moe_shared_expert_intermediate_size": 80, "moe_shared_expert_gate": True}
MLA = {
    **MODERN,
    "num_query_groups": 8,
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 10,
    "rope_type": "rope",
}
TIED = {"share_embeddings_and_output_weights": True}
SP = {"sequence_parallel": True}


@contextmanager
def standing_in(rank: int, world: int, model: Mapping[str, object]) -> Iterator[ProcessGroupCollection]:
    """Be one rank of many in this process; its groups have the right sizes and send nothing."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=model.get(TP, 1),
            pipeline_model_parallel_size=model.get(PP, 1),
            virtual_pipeline_model_parallel_size=model.get(VP),
            expert_model_parallel_size=model.get(EP, 1),
            expert_tensor_parallel_size=model.get(ETP),
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield ProcessGroupCollection.use_mpu_process_groups()
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def build(model: Mapping[str, object], groups: ProcessGroupCollection) -> list[GPTModel]:
    """Build this rank's chunks with Megatron's own classes, without the weight that it never uses."""
    kind = MLATransformerConfig if model.get("multi_latent_attention") else TransformerConfig
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in model.items() if name in known}
    config = kind(**values, perform_initialization=False, pipeline_dtype=torch.float32)
    names = {field.name for field in fields(LayerVariantFields)}
    variants = LayerVariantFields(**{name: value for name, value in model.items() if name in names})
    stage, stages = groups.pp.rank(), groups.pp.size()
    chunks = []
    for virtual in range(model.get(VP) or 1):
        at = virtual if model.get(VP) else None
        spec = host_block_spec(config, vp_stage=at, pp_rank=stage)
        apply_layer_variants(spec, variants, config=config, tp_group=groups.tp)
        chunks.append(
            GPTModel(
                config=config,
                transformer_layer_spec=spec,
                vocab_size=model["vocab_size"],
                max_sequence_length=model.get("max_position_embeddings") or model["seq_length"],
                pre_process=stage == 0 and virtual == 0,
                post_process=stage == stages - 1 and virtual == (model.get(VP) or 1) - 1,
                position_embedding_type=model["position_embedding_type"],
                share_embeddings_and_output_weights=model["share_embeddings_and_output_weights"],
                mtp_block_spec=mtp_spec(config, spec, vp_stage=at, pp_rank=stage),
                pg_collection=groups,
                vp_stage=at,
            )
        )
        drop_unused_output_weight(chunks[-1])
    return chunks


def mtp_spec(config: TransformerConfig, spec: object, *, vp_stage: int | None, pp_rank: int) -> object:
    """Return the layers of multi-token prediction that stand here, of the kind of the model's last layer."""
    if not config.mtp_num_layers:
        return None
    layers = spec if spec.layer_specs else host_block_spec(config, vp_stage=vp_stage, pp_rank=pp_rank - 1)
    block = get_gpt_mtp_block_spec(
        config, layers, use_transformer_engine=False, vp_stage=vp_stage, pp_rank=pp_rank
    )
    for layer in block.layer_specs if block else ():
        layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = HostNorm
    return block
