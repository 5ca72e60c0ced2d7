"""Section `peft`: the adapters of a model. Standard library only."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from mb_models.errors import PeftError
from mb_models.fixed_values import FixedValues
from mb_schema.sections import StrictFields

TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""The linear layers of a transformer layer, as Megatron names them."""


CANONICAL_TARGETS = (
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_proj",
    "linear_fc1_up",
    "linear_fc1_gate",
    "linear_fc2",
)
"""The same, with separate names for the layers that Megatron fuses."""


REPLACED: Mapping[str, str] = {
    "transform": "install(chunks)",
    "freeze_model": "install(chunks)",
    "adapter_key_filter": "is_adapter(name)",
    "set_params_to_save": "is_adapter(name)",
}
"""Method of Megatron-Bridge's PEFT classes -> the one that is called here."""


@dataclass(kw_only=True)
class PEFT(FixedValues, StrictFields):
    """Base class of all methods, including custom ones.

    `install` is called on every rank, after the model is built and before it is wrapped for data parallelism.
    """

    _trained = frozenset[str]()
    """Names of the parameters that a `transform` leaves trained; set in the object by `install`, and no field."""

    def install(self, chunks: Sequence[Any]) -> None:
        """Freeze the weights that are not trained, and add adapters with names that `is_adapter` recognises.

        Checkpoints hold nothing else: `freeze_moe_router` also keeps the bias that balances experts. The default calls
        `freeze_model` and then `transform(module, name, prefix)` of the subclass with each module of the model, its
        name in its parent (None: the model), and the parent's path; it returns the module, or its replacement.
        Parameters that require a gradient afterwards are the adapters.

        Raises:
            PeftError: The class has no `transform`, or a method that would never be called; or as
                `mb_models.peft.transform.install`.
        """
        self._reject_replaced("adapter_key_filter", "set_params_to_save")
        if not hasattr(self, "transform"):
            raise PeftError(
                f"peft: {type(self).__name__} has no transform, because PEFT is a base class. Define "
                "transform(self, module, name, prefix), which returns a module's replacement, or install(self, chunks)."
            )
        self._trained = import_module("mb_models.peft.transform").install(
            chunks, self
        )  # sections do not import torch

    def freeze_model(self, model: Any, training: bool = True) -> None:
        """Freeze the parameters of a model, or of a list of chunks, before `transform` is called.

        `training`: train the adapters later; False freezes them as well.
        """
        for chunk in model if isinstance(model, list) else [model]:
            chunk.requires_grad_(False)

    def _reject_replaced(self, *names: str) -> None:
        """Raise if a subclass has one of the methods, which are not called here."""
        for name in names:
            if getattr(type(self), name, None) is not getattr(PEFT, name, None):
                raise PeftError(
                    f"peft: {type(self).__name__}.{name} would never be called, because {REPLACED[name]} does its "
                    f"work. Override {REPLACED[name]}, or remove {name}."
                )

    def __call__(self, model: Any, training: bool = True) -> Any:
        """Install the adapters in a model, or in a list of chunks, and return it.

        `training`: train the adapters; False freezes them as well, and selects the evaluation mode.
        """
        chunks = model if isinstance(model, list) else [model]
        self.install(chunks)
        for chunk in chunks:
            chunk.train(training)
        if not training:
            self.freeze_model(chunks, training=False)
        return model

    def enable_adapter_layers(self, model: Any) -> None:
        """Add the adapters' update again in a model, or in a list of chunks; after `disable_adapter_layers`."""
        _call_modules(model, "enable_adapter_layers")

    def disable_adapter_layers(self, model: Any) -> None:
        """Compute a model, or a list of chunks, without adapters, which stay installed.

        Modules of custom methods take part if they have a method of this name, and `enable_adapter_layers`.
        """
        _call_modules(model, "disable_adapter_layers")

    @contextmanager
    def disable_adapter(self, model: Any) -> Iterator[None]:
        """Disable the adapters within a `with` statement: the logits are those of the model before training."""
        self.disable_adapter_layers(model)
        try:
            yield
        finally:
            self.enable_adapter_layers(model)

    def is_adapter(self, name: str) -> bool:
        """Return whether a parameter, by its name in the model, is an adapter; checkpoints hold only adapters."""
        return ".adapter." in name or name in self._trained

    def optimizer_overrides(self, *, lr: float | None, min_lr: float | None) -> dict[Any, Any]:
        """Return Megatron's `ParamKey` to `ParamGroupOverride` for parameters with a learning rate of their own.

        `lr` and `min_lr` are the rates of the other parameters. The default is none.
        """
        return {}

    def start(self, chunks: Sequence[Any]) -> None:
        """Initialise adapters from the model's weights, if these are loaded without adapters. Collective."""


def _call_modules(model: Any, method: str) -> None:
    for chunk in model if isinstance(model, list) else [model]:
        for module in chunk.modules():
            if hasattr(module, method):
                getattr(module, method)()


@dataclass(kw_only=True)
class LoRA(PEFT):
    """Low-rank adapters: each target computes W x + alpha / dim * B A x, where only A and B are trained.

    Each of Megatron's layers has one pair, including layers that fuse query, key and value, or gate and up projection.
    """

    splits_fused_layers: ClassVar[bool] = False
    """Whether the parts of a fused layer have a pair each."""
    has_magnitudes: ClassVar[bool] = False
    """Whether the sum is scaled to trained magnitudes."""

    fixed_values: ClassVar[Mapping[str, tuple[object, str]]] = {
        "lora_dtype": (None, "adapters have the dtype of their layer"),
        "a2a_experimental": (False, "adapters gather their input along the sequence"),
        "sequence_parallel_input_regather": (False, "the gathered input is kept for the backward pass"),
        "experts_shared_outer_loras": (False, "the experts of a layer share both factors, or none"),
    }
    dim: int = 32
    """Rank of the product B A."""
    alpha: float = 32.0
    """Numerator of the product's scale, alpha / dim."""
    dropout: float = 0.0
    """Probability of zeroing an input of A, or an output of the adapter, during training."""
    dropout_position: Literal["pre", "post"] = "pre"
    """Dropout of the input of A ("pre"), or of the adapter's output ("post")."""
    lora_A_init_method: Literal["xavier", "kaiming", "normal", "zero"] = "xavier"
    """Initial values of A: normal with variance 2 / (inputs + rank), uniform with bound 1 / sqrt(inputs) as in Hugging
    Face's peft, normal with deviation 0.2, or zero.
    """
    lora_B_init_method: Literal["xavier", "kaiming", "normal", "zero"] = "zero"
    """Initial values of B, in the same way with rank and outputs; zero leaves the model unchanged at the start."""
    loraplus_lr_ratio: float | None = None
    """Learning rate of B divided by that of all other trained parameters (LoRA+, arXiv 2402.12354); None: 1."""
    target_modules: list[str] = field(default_factory=lambda: list(TARGETS))
    """Layers with adapters, by the last part of their name, or by their full name with `*` for any text, as in
    "*.layers.0.*.linear_proj"; experts included. Each pattern must match a layer on some rank; of the default list,
    which is for many models, at least one pattern must.

    A T5's cross-attention has additional layers linear_q and linear_kv, which are adapted only if they are named.
    """
    exclude_modules: list[str] = field(default_factory=list)
    """Layers without adapters, in the same form, if `target_modules` is empty: all others get adapters."""
    normalize_moe_lora: bool = False
    """Divide the rank of routed experts by the number of experts of a token (`model.moe_router_topk`)."""
    share_expert_adapters: bool = True
    """Experts of a layer that are computed together (`model.moe_grouped_gemm`) share one pair, over all ranks; False:
    each has its own, as have experts that are computed one by one.
    """

    def install(self, chunks: Sequence[Any]) -> None:
        """Freeze the model and add the adapters.

        Raises:
            PeftError: The class defines a method that would never be called, or as `mb_models.peft.lora.install`.
        """
        self._reject_replaced(*REPLACED)
        import_module("mb_models.peft.lora").install(chunks, self)  # sections do not import torch

    def optimizer_overrides(self, *, lr: float | None, min_lr: float | None) -> dict[Any, Any]:
        """Return the learning rates of B, if `loraplus_lr_ratio` is set."""
        if self.loraplus_lr_ratio is None:
            return {}
        rates = {"max_lr": lr, "min_lr": min_lr}
        scaled = {name: rate * self.loraplus_lr_ratio for name, rate in rates.items() if rate is not None}
        key = import_module("megatron.core.optimizer.optimizer_config").ParamKey  # as above
        return {key(name="*.adapter.*.lora_b"): scaled}


@dataclass(kw_only=True)
class CanonicalLoRA(LoRA):
    """LoRA with a separate pair for query, key, value, gate and up projection, as outside of Megatron.

    Their names are linear_q, linear_k, linear_v, linear_fc1_gate and linear_fc1_up. linear_qkv and linear_fc1 select
    all parts.
    """

    splits_fused_layers: ClassVar[bool] = True

    target_modules: list[str] = field(default_factory=lambda: list(CANONICAL_TARGETS))
    """As in LoRA."""


@dataclass(kw_only=True)
class DoRA(LoRA):
    """LoRA whose sum is scaled, row by row, to a trained magnitude: m (W + B A) / |W + B A|.

    The norm is treated as a constant in the backward pass, as in section 4.3 of arXiv 2402.09353.
    """

    has_magnitudes: ClassVar[bool] = True

    alpha: float = 64.0
    """Numerator of the product's scale, alpha / dim."""

    def start(self, chunks: Sequence[Any]) -> None:
        """Set the magnitudes to the row norms of the loaded weights; collective over the tensor-parallel groups."""
        import_module("mb_models.peft.lora").init_magnitudes(chunks)  # as above


KINDS: dict[str, type[LoRA]] = {"lora": LoRA, "canonical_lora": CanonicalLoRA, "dora": DoRA}
"""Name, as in `peft=lora` -> section class."""


def section_by_name(name: str) -> LoRA:
    """Return the section with this name, with its defaults.

    Raises:
        PeftError: the name is unknown.
    """
    if name not in KINDS:
        raise PeftError(f"peft: {name!r} is none of {', '.join(KINDS)}. Use one of them.")
    return KINDS[name]()
