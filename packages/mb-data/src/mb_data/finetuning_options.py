"""How a line of fine-tuning data becomes a sample, as `dataset_kwargs` says it. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningOptions:
    """What `dataset_kwargs` may set: how a line becomes a sample."""

    answer_only_loss: bool = True
    """Learn the answers alone; false: the prompts, too."""

    prompt_template: str = "{input} {output}"
    """Text of a sample with keys of the line in braces; the last is `label_key`, and nothing follows it."""

    label_key: str = "output"
    """Key of the answer."""

    truncation_field: str = "input"
    """Key of the text that is shortened where a sample is too long."""

    truncation_method: Literal["left", "right"] = "right"
    """Which end of that text is cut off."""

    add_eos: bool = True
    """Let every answer end with the end of a document, and learn that."""

    pad_to_max_length: bool = False
    """Pad every micro-batch to `seq_length`, instead of to its longest sample."""

    @property
    def keys(self) -> list[str]:
        """Keys of a line that the template names, in their order."""
        return [name for _, name, _, _ in Formatter().parse(self.prompt_template) if name is not None]


def read_options(given: Mapping[str, Any] | None) -> FinetuningOptions:
    """Return the options that `dataset_kwargs` sets, with the defaults of the others.

    Raises:
        ValueError: There is no such option, its value is of another kind, or the template is none; the message begins
            with its name.
    """
    known = {each.name: getattr(FinetuningOptions(), each.name) for each in fields(FinetuningOptions)}
    for name, value in (given or {}).items():
        if name not in known:
            raise ValueError(f"{name} is none of {', '.join(known)}")
        if type(value) is not type(known[name]):
            raise ValueError(f"{name} is {value!r}, which is no {type(known[name]).__name__}")
    options = FinetuningOptions(**(given or {}))
    if options.truncation_method not in ("left", "right"):
        raise ValueError(f"truncation_method is {options.truncation_method!r}, which is none of left, right")
    problem = _bad_template(options)
    if problem is not None:
        raise ValueError(f"prompt_template is {options.prompt_template!r}, {problem}")
    return options


def _bad_template(options: FinetuningOptions) -> str | None:
    try:
        keys = options.keys
        options.prompt_template.format(**dict.fromkeys(keys, ""))
    except (ValueError, LookupError, AttributeError) as error:  # also a format that no text has
        return f"which cannot be read ({error})"
    if (
        not options.prompt_template.endswith("{" + options.label_key + "}")
        or keys.count(options.label_key) != 1
    ):
        return f"which does not end with the answer, {{{options.label_key}}}, or has it twice"
    if options.truncation_field not in keys or options.truncation_field == options.label_key:
        return f"in which no prompt has {{{options.truncation_field}}}, the truncation_field"
    return None
