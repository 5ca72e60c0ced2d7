"""Settings that need a GPU, and their replacements on other devices.

The replacements change the speed of the model, not its results; the rules reject settings that would change results.
"""

from collections.abc import Mapping
from types import MappingProxyType

from mb_models.config import TransformerFields
from mb_models.rules.kernels import TE_FIELDS, TE_LAYER_FIELDS

GPU_ONLY: Mapping[str, object] = MappingProxyType(
    {
        "apply_rope_fusion": False,
        "cross_entropy_fusion_impl": "native",
        "cuda_graph_impl": "none",
        "defer_embedding_wgrad_compute": False,
        "delay_wgrad_compute": False,
        "fine_grained_activation_offloading": False,
        "fused_residual_rmsnorm": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "mla_down_proj_fusion": False,
        "moe_permute_fusion": False,
        "moe_router_fusion": False,
        "overlap_moe_expert_parallel_comm": False,
        "persist_layer_norm": False,
        "tp_comm_overlap": False,
        "transformer_impl": "local",
        "use_te_rng_tracker": False,
    }
)
"""Field -> its replacement without a GPU. Entries of `transformer` that select a kernel are off."""


def gpu_only_settings(config: TransformerFields) -> dict[str, object]:
    """Return the fields of `config` that need a GPU, each with its replacement.

    A caller that builds on another device logs them, because they are set but not applied.
    """
    replaced = {name: value for name, value in GPU_ONLY.items() if getattr(config, name) != value}
    kernels = {name: False for name in (*TE_FIELDS, *TE_LAYER_FIELDS) if config.transformer.get(name)}
    if kernels:
        replaced["transformer"] = {**config.transformer, **kernels}
    return replaced
