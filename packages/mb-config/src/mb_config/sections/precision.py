"""Section of the precision recipe, which resolving copies to model, optimizer and ddp."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mb_config.container.section import Section, assign_computed
from mb_config.preflight.problems import reject
from mb_config.resolve.precision_table import precision_values
from mb_config.rules.precision import RECIPE_RULES

_ALIASES = {
    "fp8_param": "fp8_param_gather",
    "fp8_param_gather": "fp8_param",
    "fp4_param": "fp4_param_gather",
    "fp4_param_gather": "fp4_param",
}


@dataclass(kw_only=True)
class MixedPrecisionConfig(Section):
    """A precision recipe. `mb_config.resolve.precision_table` contains the named ones.

    `fp8_param` and `fp8_param_gather` are two names of one field: assigning one assigns the other. The same holds for
    the FP4 pair.
    """

    fp32: bool = False
    """Mark a float32 run. Not supported: rejected if set."""

    fp16: bool = False
    """Compute in float16."""

    bf16: bool = False
    """Compute in bfloat16."""

    params_dtype: str | None = None
    """Dtype of the parameters; None: that of the model."""

    pipeline_dtype: str | None = None
    """Dtype of tensors sent between pipeline stages."""

    autocast_dtype: str | None = None
    """Dtype of torch's autocast."""

    autocast_enabled: bool = False
    """Run under torch's autocast. Not supported, use `model.enable_autocast`: rejected if set."""

    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in float32."""

    fp8: str | None = None
    """FP8 format, hybrid or e4m3; None: no FP8."""

    fp8_recipe: str = "tensorwise"
    """FP8 scaling: tensorwise, delayed, mxfp8, blockwise."""

    first_last_layers_bf16: bool = False
    """Keep the first and last layers in bfloat16."""

    fp8_margin: int = 0
    """Margin of the FP8 scale, in powers of two."""

    fp8_amax_history_len: int = 1
    """Length of the amax history, in steps."""

    fp8_amax_compute_algo: str = "most_recent"
    """Value used from the amax history: most_recent or max."""

    fp8_wgrad: bool = True
    """Compute weight gradients in FP8."""

    fp8_dot_product_attention: bool = False
    """Compute dot-product attention in FP8."""

    fp8_multi_head_attention: bool = False
    """Compute the entire attention layer in FP8."""

    fp8_param: bool | None = None
    """Name of `fp8_param_gather` in the model section."""

    fp8_param_gather: bool = False
    """Store and gather parameters in FP8."""

    fp4: str | None = None
    """FP4 format, e2m1; None: no FP4."""

    fp4_recipe: str = "nvfp4"
    """FP4 scaling."""

    fp4_param: bool | None = None
    """Name of `fp4_param_gather` in the model section."""

    fp4_param_gather: bool = False
    """Store and gather parameters in FP4."""

    loss_scale: float | None = None
    """Constant loss scale; None: dynamic in float16."""

    initial_loss_scale: float | None = 2.0**32
    """Initial value of the dynamic loss scale."""

    min_loss_scale: float = 1.0
    """Lower bound of the dynamic loss scale."""

    loss_scale_window: float = 1000.0
    """Consecutive steps without overflow before the loss scale is increased."""

    hysteresis: int = 2
    """Steps with overflow before the loss scale is decreased."""

    num_layers_at_start_in_bf16: int = 0
    """Number of first layers to keep in bfloat16."""

    num_layers_at_end_in_bf16: int = 0
    """Number of last layers to keep in bfloat16."""

    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    """Gather MXFP8 parameters through the gradient buffer."""

    def __post_init__(self) -> None:
        """Copy the field that is set of each pair of aliases to the other one."""
        for name in ("fp8_param", "fp4_param"):
            if getattr(self, name) is not None and _ALIASES[name] not in self._given:
                assign_computed(self, _ALIASES[name], getattr(self, name))
            elif name not in self._given and _ALIASES[name] in self._given:
                assign_computed(self, name, getattr(self, _ALIASES[name]))

    def __setattr__(self, name: str, value: object) -> None:
        alias = _ALIASES.get(name)
        later = name in vars(self)
        super().__setattr__(name, value)
        if later and alias is not None and value is not None and vars(self).get(alias) != value:
            super().__setattr__(alias, value)

    def finalize(self) -> None:
        """Set aliases that are None. Idempotent.

        Raises:
            ConfigError: If FP4 and FP8 are combined, or aliases differ (V013 to V015).
        """
        reject({"mixed_precision": self}, RECIPE_RULES)
        for name in ("fp8_param", "fp4_param"):
            if getattr(self, name) is None:
                assign_computed(self, name, getattr(self, _ALIASES[name]))

    def setup(self, model_config: Any, optimizer_config: Any = None, ddp_config: Any = None) -> None:
        """Assign each field to every section that has it, as a caller would: a section may be None or a mapping.

        Values that were set before are overwritten. `runtime_config_update` does the same for a whole configuration,
        but keeps the values of the user and reports conflicts. None is not assigned to a field whose default is not
        None.
        """
        sections = SimpleNamespace(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
        for path, value in precision_values(self, sections):
            name, _, field = path.partition(".")
            section = getattr(sections, name)
            if isinstance(section, dict):
                section[field] = value
            else:
                setattr(section, field, value)
