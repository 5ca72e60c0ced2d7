"""Layer stack of a hybrid model on the CPU: Megatron's layers with this package's norms and attention.

Needs `megatron.core` (the `mcore` extra), and `mb_host.install()` before it, which gives the Mamba and gated-delta
layers the torch scans of `mb_host.megatron.kernels`.
"""

from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)

from mb_host.megatron.layers import HostCoreAttention, HostNorm, reject_ignored


class HostHybridStack(HybridStack):  # type: ignore[misc]
    """Megatron's hybrid stack with torch's final norm; Megatron always uses Transformer Engine's."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: HybridStackSubmodules,
        post_layer_norm: bool = True,
        post_process: bool = True,
        **rest: object,
    ) -> None:
        super().__init__(config, submodules, post_layer_norm=False, post_process=post_process, **rest)
        self.post_layer_norm = post_layer_norm
        if post_process and post_layer_norm:
            self.final_norm = HostNorm(config, config.hidden_size, config.layernorm_epsilon)


def host_hybrid_spec(
    config: TransformerConfig, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> ModuleSpec:
    """Return the spec of a stack for a pattern of attention, MLP, expert, Mamba, gated-delta and MTP layers.

    The pattern determines the layers of a stage, so `vp_stage` and `pp_rank` are ignored. Weights have the names of
    Transformer Engine's layers, so that checkpoints are compatible with them.

    Raises:
        ValueError: `config` sets an option that these layers would silently ignore.
    """
    reject_ignored(config)
    return ModuleSpec(
        module=HostHybridStack,
        submodules=HybridStackSubmodules(
            mamba_layer=_mamba(),
            gdn_layer=_mixing(_gated_delta(), linear="in_proj"),
            attention_layer=_mixing(_attention(config), linear="linear_qkv"),
            mlp_layer=_mlp(),
            moe_layer=_experts(config),
            mtp_block_spec=_multi_token_prediction(),
        ),
    )


def _mamba() -> ModuleSpec:
    mixer = ModuleSpec(
        module=MambaMixer,
        submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
    )
    return ModuleSpec(
        module=MambaLayer,
        submodules=MambaLayerSubmodules(
            norm=HostNorm,
            mixer=mixer,
            mamba_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map={"norm.": "mixer.in_proj.layer_norm_"},
        ),
    )


def _gated_delta() -> ModuleSpec:
    return ModuleSpec(
        module=GatedDeltaNet,
        submodules=GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=HostNorm, out_proj=RowParallelLinear
        ),
    )


def _attention(config: TransformerConfig) -> ModuleSpec:
    norm = HostNorm if config.qk_layernorm else IdentityOp
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=HostCoreAttention,
            linear_proj=RowParallelLinear,
            q_layernorm=norm,
            k_layernorm=norm,
        ),
    )


def _mixing(attention: ModuleSpec, *, linear: str) -> ModuleSpec:
    """Return a layer with an attention module and no MLP; `linear` is the linear layer that follows the norm."""
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=HostNorm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map={"input_layernorm.": f"self_attention.{linear}.layer_norm_"},
        ),
    )


def _mlp() -> ModuleSpec:
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    return ModuleSpec(
        module=MLPLayer,
        submodules=TransformerLayerSubmodules(
            pre_mlp_layernorm=HostNorm,
            mlp=partial(MLP.as_mlp_submodule, submodules=parts),
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map={"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"},
        ),
    )


def _experts(config: TransformerConfig) -> ModuleSpec | type:
    if config.num_moe_experts is None:
        return IdentityOp
    experts = get_moe_module_spec(
        use_te=False, num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm
    )
    return ModuleSpec(
        module=MoETransformerLayer,
        submodules=TransformerLayerSubmodules(
            pre_mlp_layernorm=HostNorm, mlp=experts, mlp_bda=get_bias_dropout_add
        ),
    )


def _multi_token_prediction() -> ModuleSpec:
    layer = MultiTokenPredictionLayerSubmodules(
        enorm=HostNorm,
        hnorm=HostNorm,
        eh_proj=ColumnParallelLinear,
        mtp_model_layer=None,  # Megatron builds it from the pattern
        layer_norm=HostNorm,
    )
    return ModuleSpec(
        module=MultiTokenPredictionBlock,
        submodules=MultiTokenPredictionBlockSubmodules(
            layer_specs=[ModuleSpec(module=MultiTokenPredictionLayer, submodules=layer)]
        ),
    )
