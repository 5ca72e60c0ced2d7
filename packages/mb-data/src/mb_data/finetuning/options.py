"""Options of fine-tuning data that `dataset_kwargs` sets. Standard library only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from string import Formatter
from typing import Any, Literal

TURN_TOKENS: Mapping[str, str] = {
    "system_turn_start": "<extra_id_0>",
    "turn_start": "<extra_id_1>",
    "label_start": "<extra_id_2>",
    "end_of_turn": "\n",
    "end_of_name": "\n",
}
"""Texts around the turns of a conversation, as in Megatron-Bridge."""


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
    """Key of the text that is truncated if a sample is too long; several keys are separated by commas."""

    truncation_method: Literal["left", "right"] = "right"
    """Side on which that text is truncated."""

    add_bos: bool = False
    """Begin every sample with the tokenizer's beginning-of-sequence token, unless the tokenizer adds it."""

    add_eos: bool = True
    """Append the end-of-document token to every answer, and include it in the loss."""

    add_sep: bool = False
    """Insert the token `sep_id` between prompt and answer. The loss does not cover it."""

    sep_id: int | None = None
    """Id of the token that `add_sep` inserts."""

    pad_to_max_length: bool = False
    """Pad every micro-batch to `seq_length` instead of its longest sample."""

    pad_seq_length_to_mult: int = 1
    """Pad every micro-batch to a multiple of this number of tokens."""

    chat: bool = False
    """Read every line as a conversation, and render it with the chat template of the tokenizer."""

    use_hf_tokenizer_chat_template: bool = False
    """With `chat`: render conversations with the Jinja template of the tokenizer. False: as turns between the tokens of
    `special_tokens`."""

    special_tokens: dict[str, str] = field(default_factory=lambda: dict(TURN_TOKENS))
    """Texts around the turns of conversations without a chat template."""

    sample_per_assistant_turn: bool = False
    """Create one sample for each message of the assistant, of the conversation up to it, with the loss on it. False:
    one sample of the complete conversation, with the loss on all messages of the assistant."""

    tool_schemas: str | dict[str, Any] | list[Any] | None = None
    """JSON schemas of the tools in conversations without `tools`, or their JSON text."""

    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking` or `date_string`."""

    @property
    def keys(self) -> list[str]:
        """Keys of a line that the template contains, in order."""
        return [name for _, name, _, _ in Formatter().parse(self.prompt_template) if name is not None]

    @property
    def truncation_fields(self) -> list[str]:
        """Keys of the texts that are truncated."""
        return [name.strip() for name in self.truncation_field.split(",")]

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """Tools of conversations without `tools`; None if there are none."""
        schemas = json.loads(self.tool_schemas) if isinstance(self.tool_schemas, str) else self.tool_schemas
        return [schemas] if isinstance(schemas, dict) else schemas


_TYPES: dict[str, tuple[type, ...]] = {
    "sep_id": (int, type(None)),
    "tool_schemas": (str, dict, list, type(None)),
}
"""Types of the options whose default is None; others have the type of their default."""

_NOT_WITH_CHAT = (
    "prompt_template",
    "label_key",
    "truncation_field",
    "truncation_method",
    "add_bos",
    "add_eos",
    "add_sep",
    "sep_id",
)
_ONLY_WITH_CHAT = (
    "use_hf_tokenizer_chat_template",
    "special_tokens",
    "sample_per_assistant_turn",
    "tool_schemas",
    "chat_template_kwargs",
)
_ONLY_WITH_TEMPLATE = ("tool_schemas", "chat_template_kwargs")

_COUNTED = (
    "the run determines the number of samples; set dataset.max_train_samples to use the first ones only"
)
_ATTENTION = "attention masks are created by the attention kernel"
REJECTED_OPTIONS: Mapping[str, tuple[object, str]] = {
    "ceil_to_power_2": (False, "set pad_seq_length_to_mult, or pad_to_max_length"),
    "get_attention_mask_from_fusion": (True, _ATTENTION),
    "global_sample_mapping": (False, "every epoch is shuffled by itself"),
    "hf_dataset": (False, "files are read by their suffix, without the library datasets"),
    "index_mapping_dir": (None, "set dataset.cache_dir"),
    "is_test": (False, "lines of every split need an answer, because the loss is computed on it"),
    "max_num_samples": (None, _COUNTED),
    "memmap_workers": (None, "set dataset.memmap_workers"),
    "min_seq_length": (1, "samples are not dropped by length; remove the lines from the file"),
    "output_original_text": (False, "samples contain token ids only"),
    "pack_metadata_file_path": (None, "packs are described by their files"),
    "pad_cu_seqlens": (False, "set dataset.packed_sequence_specs.pad_cu_seqlens"),
    "return_cu_seqlen": (True, "packs always contain cu_seqlens"),
    "sanity_check_dist_workers": (True, "samples are built on rank 0 and loaded by the others"),
    "seed": (None, "set dataset.seed"),
    "tokens_to_generate": (0, "no text is generated from these samples"),
    "virtual_tokens": (0, "prompt tuning is not supported"),
}
"""Options of Megatron-Bridge's datasets that are not supported -> the value without effect, reason or replacement."""


def read_options(dataset_kwargs: Mapping[str, Any] | None) -> FinetuningOptions:
    """Return the options that `dataset_kwargs` sets; the others have their defaults.

    An option of Megatron-Bridge that is not supported is accepted with the value that corresponds to what is
    implemented.

    Raises:
        ValueError: An option does not exist or is not supported, its value has the wrong type, two options contradict
            each other, or the template is invalid. The message begins with the name of the option.
    """
    defaults = {option.name: getattr(_DEFAULTS, option.name) for option in fields(FinetuningOptions)}
    chosen = {}
    for name, value in (dataset_kwargs or {}).items():
        if name in REJECTED_OPTIONS:
            neutral, reason = REJECTED_OPTIONS[name]
            if type(value) is not type(neutral) or value != neutral:
                raise ValueError(f"{name} is {value!r}, which is not supported: {reason}")
            continue
        if name not in defaults:
            raise ValueError(f"{name} is not one of {', '.join(defaults)}")
        types = _TYPES.get(name, (type(defaults[name]),))
        if type(value) not in types:
            raise ValueError(
                f"{name} is {value!r}, which is not of type {' or '.join(kind.__name__ for kind in types)}"
            )
        chosen[name] = value
    options = FinetuningOptions(**chosen)
    problem = _bad_values(options) or _bad_chat(options, chosen) or _bad_template(options)
    if problem is not None:
        raise ValueError(problem)
    return options


def _bad_values(options: FinetuningOptions) -> str | None:
    if options.truncation_method not in ("left", "right"):
        return f"truncation_method is {options.truncation_method!r}, which is not one of left, right"
    if options.pad_seq_length_to_mult < 1:
        return f"pad_seq_length_to_mult is {options.pad_seq_length_to_mult}, which is below 1"
    if options.add_sep and (options.sep_id is None or options.sep_id < 0):
        return f"add_sep is true with sep_id={options.sep_id}, which is not the id of a token"
    if options.sep_id is not None and not options.add_sep:
        return f"sep_id is {options.sep_id}, which has no effect without add_sep=true"
    return None


def _bad_chat(options: FinetuningOptions, chosen: Mapping[str, Any]) -> str | None:
    changed = [name for name in chosen if chosen[name] != getattr(_DEFAULTS, name)]
    if not options.chat:
        idle = [name for name in changed if name in _ONLY_WITH_CHAT]
        return f"{idle[0]} is {chosen[idle[0]]!r}, which has no effect without chat=true" if idle else None
    has_template = options.use_hf_tokenizer_chat_template
    unread = _NOT_WITH_CHAT + (("special_tokens",) if has_template else _ONLY_WITH_TEMPLATE)
    idle = [name for name in changed if name in unread]
    if idle:
        decides = "the chat template decides" if has_template else "special_tokens decide"
        return f"{idle[0]} is {chosen[idle[0]]!r}, which has no effect with chat=true: {decides}"
    texts = options.special_tokens
    if texts.keys() != TURN_TOKENS.keys() or not all(isinstance(text, str) for text in texts.values()):
        return f"special_tokens is {texts!r}, which is not a text for each of {', '.join(TURN_TOKENS)}"
    try:
        tools = options.tools
    except ValueError as error:
        return f"tool_schemas is {options.tool_schemas!r}, which is not JSON ({error})"
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        return f"tool_schemas is {options.tool_schemas!r}, which is not a list of JSON schemas"
    return None


def _bad_template(options: FinetuningOptions) -> str | None:
    problem = _template_problem(options)
    return problem and f"prompt_template is {options.prompt_template!r}, {problem}"


def _template_problem(options: FinetuningOptions) -> str | None:
    """Return the problem with the prompt template, as a clause that begins with "which" or "whose"; or None."""
    try:
        keys = options.keys
        options.prompt_template.format(**dict.fromkeys(keys, ""))
    except (ValueError, LookupError, AttributeError) as error:  # also format specifications not for strings
        return f"which cannot be parsed ({error})"
    if (
        not options.prompt_template.endswith("{" + options.label_key + "}")
        or keys.count(options.label_key) != 1
    ):
        return f"which does not end with the answer, {{{options.label_key}}}, or contains it twice"
    missing = [name for name in options.truncation_fields if name not in keys or name == options.label_key]
    if missing:
        return f"whose prompt does not contain {{{missing[0]}}}, the truncation_field"
    return None


_DEFAULTS = FinetuningOptions()
