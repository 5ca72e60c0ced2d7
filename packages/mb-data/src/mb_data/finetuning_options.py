"""Options of fine-tuning data that `dataset_kwargs` sets. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningOptions:
    """Options of the conversion from a line to a sample."""

    answer_only_loss: bool = True
    """Compute the loss on answers only. False: on prompts too."""

    prompt_template: str = "{input} {output}"
    """Text of a sample, with keys of the line in braces. It ends with `label_key`."""

    label_key: str = "output"
    """Key of the answer."""

    truncation_field: str = "input"
    """Key of the text that is truncated if a sample is too long."""

    truncation_method: Literal["left", "right"] = "right"
    """Side on which that text is truncated."""

    add_eos: bool = True
    """Append the end-of-document token to every answer, and include it in the loss."""

    pad_to_max_length: bool = False
    """Pad every micro-batch to `seq_length` instead of its longest sample."""

    @property
    def keys(self) -> list[str]:
        """Keys of a line that the template contains, in order."""
        return [name for _, name, _, _ in Formatter().parse(self.prompt_template) if name is not None]


def read_options(given: Mapping[str, Any] | None) -> FinetuningOptions:
    """Return the options that `dataset_kwargs` sets; the others have their defaults.

    Raises:
        ValueError: An option does not exist, its value has the wrong type, or the template is invalid. The message
            begins with the name of the option.
    """
    known = {each.name: getattr(FinetuningOptions(), each.name) for each in fields(FinetuningOptions)}
    for name, value in (given or {}).items():
        if name not in known:
            raise ValueError(f"{name} is not one of {', '.join(known)}")
        if type(value) is not type(known[name]):
            raise ValueError(f"{name} is {value!r}, which is not of type {type(known[name]).__name__}")
    options = FinetuningOptions(**(given or {}))
    if options.truncation_method not in ("left", "right"):
        raise ValueError(
            f"truncation_method is {options.truncation_method!r}, which is not one of left, right"
        )
    problem = _bad_template(options)
    if problem is not None:
        raise ValueError(f"prompt_template is {options.prompt_template!r}, {problem}")
    return options


def _bad_template(options: FinetuningOptions) -> str | None:
    try:
        keys = options.keys
        options.prompt_template.format(**dict.fromkeys(keys, ""))
    except (
        ValueError,
        LookupError,
        AttributeError,
    ) as error:  # includes format specifications that do not apply to strings
        return f"which cannot be parsed ({error})"
    if (
        not options.prompt_template.endswith("{" + options.label_key + "}")
        or keys.count(options.label_key) != 1
    ):
        return f"which does not end with the answer, {{{options.label_key}}}, or contains it twice"
    if options.truncation_field not in keys or options.truncation_field == options.label_key:
        return f"whose prompt does not contain {{{options.truncation_field}}}, the truncation_field"
    return None
