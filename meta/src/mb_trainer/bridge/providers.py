"""Model sections under the names of Megatron-Bridge's providers, which take values of torch. No torch."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from mb_models import GPTModelConfig, MambaModelConfig, T5ModelConfig


class PlainValues:
    """Values of torch in a section become names: `torch.bfloat16` "bfloat16", `F.silu` "silu".

    Fields that a subclass declares again keep their types: Megatron-Bridge's `activation_func: Callable = F.silu` is a
    new default for a name.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        base = next((base for base in cls.__mro__[1:] if is_dataclass(base)), None)
        if base is not None:
            types = get_type_hints(base)
            again = {item.name for item in fields(base)} & cls.__annotations__.keys()
            cls.__annotations__ |= {name: types[name] for name in again}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, plain(value))


def plain(value: Any) -> Any:
    """Return the name of a dtype or of an activation function; any other value unchanged."""
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if callable(value) and not isinstance(value, type) and hasattr(value, "__name__"):
        return value.__name__
    return value


@dataclass(kw_only=True)
class GPTModelProvider(PlainValues, GPTModelConfig):
    """Section of a GPT."""


@dataclass(kw_only=True)
class MambaModelProvider(PlainValues, MambaModelConfig):
    """Section of a hybrid."""


@dataclass(kw_only=True)
class T5ModelProvider(PlainValues, T5ModelConfig):
    """Section of a T5."""
