"""The optimizer: algorithm, precision, loss scaling, sharding, offloading."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mb_config.problems import reject
from mb_config.rules.optimizer import SECTION_RULES
from mb_config.section import Section


@dataclass(kw_only=True)
class OptimizerConfig(Section):
    """Megatron Core's optimizer settings, dtypes as strings. `mb_config.mcore.to_megatron` makes the real one."""

    lr: float | None = None
    """Highest learning rate, reached after the warm-up."""

    min_lr: float | None = None
    """Lowest learning rate, at which the decay ends; None: 0."""

    decoupled_lr: float | None = None
    """Highest learning rate of the input and output layers; None: as the others."""

    decoupled_min_lr: float | None = None
    """Lowest learning rate of the input and output layers; None: as the others."""

    weight_decay: float = 0.01
    """Weight decay of matrices."""

    apply_wd_to_qk_layernorm: bool = False
    """Decay the norms of queries and keys too."""

    fp8_recipe: str | None = None
    """Scaling recipe of FP8 weights: delayed, tensorwise, mxfp8, blockwise."""

    fp16: bool = False
    """The model computes in float16."""

    bf16: bool = False
    """The model computes in bfloat16."""

    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    """Gather MXFP8 parameters through the gradient buffer."""

    params_dtype: str = "float32"
    """Dtype of the model's parameters."""

    use_precision_aware_optimizer: bool = False
    """Allow gradients, master weights and moments below float32."""

    store_param_remainders: bool = True
    """Keep only the 16 bits of the master weight that the bfloat16 parameter lacks."""

    main_grads_dtype: str = "float32"
    """Dtype of main gradients."""

    main_params_dtype: str = "float32"
    """Dtype of master weights."""

    exp_avg_dtype: str = "float32"
    """Dtype of Adam's first moment."""

    exp_avg_sq_dtype: str = "float32"
    """Dtype of Adam's second moment."""

    optimizer: str = "adam"
    """Algorithm: adam, sgd, lion, muon and others that Megatron Core knows."""

    loss_scale: float | None = None
    """Fixed loss scale; None: adapted while training in float16."""

    initial_loss_scale: float = 2.0**32
    """First value of the adapted loss scale."""

    min_loss_scale: float = 1.0
    """Lower bound of the adapted loss scale."""

    loss_scale_window: float = 1000.0
    """Good steps in a row before the loss scale grows."""

    hysteresis: int = 2
    """Bad steps before the loss scale shrinks."""

    adam_beta1: float = 0.9
    """Adam: decay of the first moment."""

    adam_beta2: float = 0.999
    """Adam: decay of the second moment."""

    adam_eps: float = 1e-08
    """Adam: added to the denominator."""

    decoupled_weight_decay: bool = True
    """Decay apart from the gradient (AdamW) instead of through it."""

    sgd_momentum: float = 0.9
    """SGD: momentum."""

    muon_momentum: float = 0.95
    """Muon: momentum."""

    muon_split_qkv: bool = True
    """Muon: treat queries, keys and values apart."""

    muon_nesterov: bool = False
    """Muon: Nesterov momentum."""

    muon_scale_mode: str = "spectral"
    """Muon: how the update is scaled."""

    muon_fp32_matmul_prec: str = "medium"
    """Muon: precision of its float32 products."""

    muon_coefficient_type: str = "quintic"
    """Muon: coefficients of the Newton-Schulz iteration."""

    muon_num_ns_steps: int = 5
    """Muon: steps of the Newton-Schulz iteration."""

    muon_tp_mode: str = "blockwise"
    """Muon: how tensor-parallel weights are orthogonalised."""

    muon_extra_scale_factor: float = 1.0
    """Muon: a further factor on the update."""

    muon_scalar_optimizer: str = "adam"
    """Muon: algorithm for what is no matrix, adam or lion."""

    lion_beta1: float = 0.95
    """Lion: weight of the momentum in the update."""

    lion_beta2: float = 0.98
    """Lion: decay of the momentum."""

    soap_shampoo_beta: float = 0.95
    """SOAP: decay of the preconditioner."""

    soap_precondition_frequency: int = 1
    """SOAP: steps between two updates of the preconditioner."""

    soap_use_kl_shampoo: bool = True
    """SOAP: use the KL form of Shampoo."""

    adaptive_muon_moment2_method: str = "adamuon"
    """Adaptive Muon: how the second moment is kept."""

    adaptive_muon_beta2: float = 0.95
    """Adaptive Muon: decay of the second moment."""

    adaptive_muon_eps: float = 1e-08
    """Adaptive Muon: added to the denominator."""

    use_distributed_optimizer: bool = False
    """Shard the optimizer's state over data-parallel ranks; resolving keeps it equal to ddp's."""

    use_layer_wise_distributed_optimizer: bool = False
    """Shard by whole layers, for optimizers such as Muon."""

    overlap_param_gather: bool = False
    """Gather parameters during the forward pass; resolving keeps it equal to ddp's."""

    overlap_param_gather_with_optimizer_step: bool = False
    """Gather the first bucket during the optimizer step."""

    optimizer_cpu_offload: bool = False
    """Keep the optimizer's state on the CPU and step there."""

    optimizer_offload_fraction: float = 0.0
    """Part of the state to keep there, 0 to 1."""

    use_torch_optimizer_for_cpu_offload: bool = False
    """Use torch's optimizer for that part."""

    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Copy to and from the CPU while its step runs."""

    pin_cpu_grads: bool = True
    """Pin the CPU's copy of the gradients."""

    pin_cpu_params: bool = True
    """Pin the CPU's copy of the parameters."""

    clip_grad: float = 1.0
    """Largest global norm of the gradient; 0: no clipping."""

    grad_norm_skip_threshold: float = math.inf
    """Skip a step whose gradient norm is above this."""

    log_num_zeros_in_grad: bool = False
    """Count the zeros in the gradient at each step."""

    barrier_with_L1_time: bool = False
    """Put a barrier before timers of the first level."""

    timers: Callable[..., object] | None = None
    """Megatron's timers, handed in by the trainer; never written to a file."""

    config_logger_dir: str = ""
    """Folder to which Megatron dumps the settings of its entry points; empty: nowhere."""

    optimizer_cuda_graph: bool = False
    """Run the optimizer step as a CUDA graph."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing.

        Raises:
            ConfigError: settings that Megatron Core would refuse (V051).
        """
        reject({"optimizer": self}, SECTION_RULES)
