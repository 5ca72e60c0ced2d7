"""Section of the optimizer: algorithm, precision, loss scaling, sharding, offloading."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mb_config.container.section import Section
from mb_config.preflight.problems import reject
from mb_config.rules.optimizer import SECTION_RULES


@dataclass(kw_only=True)
class OptimizerConfig(Section):
    """Settings of Megatron Core's optimizer, dtypes as text.

    `mb_config.mcore.to_megatron` converts it to Megatron's class.
    """

    lr: float | None = None
    """Maximum learning rate, reached after the warm-up."""

    min_lr: float | None = None
    """Minimum learning rate, reached at the end of the decay; None: 0."""

    decoupled_lr: float | None = None
    """Maximum learning rate of the input and output layers; None: `lr`."""

    decoupled_min_lr: float | None = None
    """Minimum learning rate of the input and output layers; None: `min_lr`."""

    weight_decay: float = 0.01
    """Weight decay of parameters of two or more dimensions."""

    apply_wd_to_qk_layernorm: bool = False
    """Apply weight decay to the norms of queries and keys."""

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
    """Store only the 16 bits of the master weight that the bfloat16 parameter does not contain."""

    main_grads_dtype: str = "float32"
    """Dtype of main gradients."""

    main_params_dtype: str = "float32"
    """Dtype of master weights."""

    exp_avg_dtype: str = "float32"
    """Dtype of Adam's first moment."""

    exp_avg_sq_dtype: str = "float32"
    """Dtype of Adam's second moment."""

    optimizer: str = "adam"
    """Algorithm: adam, sgd, lion, muon and others that Megatron Core implements."""

    loss_scale: float | None = None
    """Constant loss scale; None: dynamic in float16."""

    initial_loss_scale: float = 2.0**32
    """Initial value of the dynamic loss scale."""

    min_loss_scale: float = 1.0
    """Lower bound of the dynamic loss scale."""

    loss_scale_window: float = 1000.0
    """Consecutive steps without overflow before the loss scale is increased."""

    hysteresis: int = 2
    """Steps with overflow before the loss scale is decreased."""

    adam_beta1: float = 0.9
    """Adam: decay of the first moment."""

    adam_beta2: float = 0.999
    """Adam: decay of the second moment."""

    adam_eps: float = 1e-08
    """Adam: added to the denominator."""

    decoupled_weight_decay: bool = True
    """Apply weight decay separately from the gradient (AdamW)."""

    sgd_momentum: float = 0.9
    """SGD: momentum."""

    muon_momentum: float = 0.95
    """Muon: momentum."""

    muon_split_qkv: bool = True
    """Muon: treat queries, keys and values separately."""

    muon_nesterov: bool = False
    """Muon: Nesterov momentum."""

    muon_scale_mode: str = "spectral"
    """Muon: scaling of the update."""

    muon_fp32_matmul_prec: str = "medium"
    """Muon: precision of its float32 products."""

    muon_coefficient_type: str = "quintic"
    """Muon: coefficients of the Newton-Schulz iteration."""

    muon_num_ns_steps: int = 5
    """Muon: steps of the Newton-Schulz iteration."""

    muon_tp_mode: str = "blockwise"
    """Muon: orthogonalization of tensor-parallel weights."""

    muon_extra_scale_factor: float = 1.0
    """Muon: additional factor on the update."""

    muon_scalar_optimizer: str = "adam"
    """Muon: algorithm for parameters that are not matrices, adam or lion."""

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
    """Adaptive Muon: form of the second moment."""

    adaptive_muon_beta2: float = 0.95
    """Adaptive Muon: decay of the second moment."""

    adaptive_muon_eps: float = 1e-08
    """Adaptive Muon: added to the denominator."""

    use_distributed_optimizer: bool = False
    """Shard the optimizer state over data-parallel ranks. Resolving makes it equal to the field of ddp."""

    use_layer_wise_distributed_optimizer: bool = False
    """Shard by entire layers, for optimizers such as Muon."""

    overlap_param_gather: bool = False
    """Overlap the parameter all-gather with the forward pass. Resolving makes it equal to the field of ddp."""

    overlap_param_gather_with_optimizer_step: bool = False
    """Gather the first bucket during the optimizer step."""

    optimizer_cpu_offload: bool = False
    """Keep the optimizer state on the CPU and run its step there."""

    optimizer_offload_fraction: float = 0.0
    """Fraction of the state on the CPU, 0 to 1."""

    use_torch_optimizer_for_cpu_offload: bool = False
    """Use torch's optimizer for the fraction on the CPU."""

    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Overlap copies from and to the device with the step on the CPU."""

    pin_cpu_grads: bool = True
    """Use pinned memory for the CPU copy of the gradients."""

    pin_cpu_params: bool = True
    """Use pinned memory for the CPU copy of the parameters."""

    clip_grad: float = 1.0
    """Maximum global gradient norm; 0: no clipping."""

    grad_norm_skip_threshold: float = math.inf
    """Skip steps with a gradient norm above this value."""

    log_num_zeros_in_grad: bool = False
    """Count the zeros in the gradient at each step."""

    barrier_with_L1_time: bool = False
    """Put a barrier before timers of the first level."""

    timers: Callable[..., object] | None = None
    """Megatron's timers, passed by the trainer; never written to a file."""

    config_logger_dir: str = ""
    """Directory to which Megatron writes the settings of its entry points; empty: disabled."""

    optimizer_cuda_graph: bool = False
    """Run the optimizer step as a CUDA graph."""

    def finalize(self) -> None:
        """Check the section by itself. Does not modify it.

        Raises:
            ConfigError: If Megatron Core would reject the settings (V051).
        """
        reject({"optimizer": self}, SECTION_RULES)
