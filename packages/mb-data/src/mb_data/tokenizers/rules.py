"""Rules for the section `tokenizer`. Standard library only."""

from collections.abc import Mapping
from typing import Any

from mb_data.chat.prompt_formats import PROMPT_FORMATS
from mb_schema.rule_kinds import (
    among,
    at_most,
    in_range,
    one_of,
    other_than,
    requires,
    rule,
    unsupported,
    within,
)
from mb_schema.rules import Rule

CHAT_TOKENIZERS = (None, "ByteTokenizer", "GPT2BPETokenizer", "HuggingFaceTokenizer", "TikTokenizer")
"""Types that encode the special tokens of a chat template."""

END_OF_DOCUMENT = "<|endoftext|>"
"""End-of-document token of the tokenizers that this package trains."""

SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
"""Equivalent names of the type that reads a SentencePiece model."""

FROM_MODEL = ("HuggingFaceTokenizer", "TikTokenizer", *SENTENCEPIECE)
"""Types that are read from `tokenizer_model`."""

SUPPORTED_TOKENIZERS = (None, "ByteTokenizer", "NullTokenizer", "GPT2BPETokenizer", *FROM_MODEL)

_LOSSY = "its ids do not decode to the original text, and masked language models are not supported"
_NO_IMAGE_TOKENS = "image tokens are negative ids (dataset.image_token_id), not entries of a vocabulary"
_UNSUPPORTED_TYPES = {
    "BertWordPieceLowerCase": _LOSSY,
    "BertWordPieceCase": _LOSSY,
    "MultimodalTokenizer": _NO_IMAGE_TOKENS,
    "NullMultimodalTokenizer": _NO_IMAGE_TOKENS,
    "SFTTokenizer": "conversations are formatted by the fine-tuning dataset, not by the tokenizer",
}
"""Types of Megatron Core that this package does not support -> reason."""

BYTE_ENTRIES = 257
"""Minimum number of entries of a byte-level vocabulary: the 256 bytes and the end-of-document token."""
MANY_ENTRIES = "the embedding has a row, and each token a logit, for every entry"
"""Reason of the rules that limit the number of entries."""


def _check_type(kind: Any) -> str | None:
    if kind in SUPPORTED_TOKENIZERS:
        return None
    return f"{kind!r}: {_UNSUPPORTED_TYPES.get(kind, 'the type does not exist')}"


def _tokenizer_source(kind: Any, model: Any, vocab_size: Any, vocab_file: Any, merge_file: Any) -> str | None:
    if kind in FROM_MODEL and not model:
        return f"{kind} without tokenizer_model"
    if kind == "NullTokenizer" and (not vocab_size or vocab_size < 1):
        return f"NullTokenizer with vocab_size={vocab_size}"
    if kind == "GPT2BPETokenizer" and not (vocab_file and merge_file):
        return f"GPT2BPETokenizer with vocab_file={vocab_file!r}, merge_file={merge_file!r}"
    return None


REJECTED_OPTIONS = {
    "include_special_tokens": "set tokenizer.tokenizer_hf_no_include_special_tokens",
    "use_fast": "ids come from a tokenizer.json, which slow tokenizers do not have",
    "subfolder": "set tokenizer.tokenizer_model to the folder itself",
    "local_files_only": "nothing is downloaded",
    "token": "nothing is downloaded",
    "cache_dir": "nothing is downloaded",
    "force_download": "nothing is downloaded",
    "proxies": "nothing is downloaded",
    "padding_side": "the tokenizer does not pad",
    "truncation_side": "the tokenizer does not truncate",
    "model_max_length": "the tokenizer does not truncate",
    "chat_template": "conversations are formatted before they are tokenized",
}
"""Keyword arguments of Hugging Face tokenizers that `hf_tokenizer_kwargs` rejects -> reason."""


IDLE_OPTIONS = ("revision", "trust_remote_code")
"""Keyword arguments for a download of a tokenizer: a folder has one revision, and no code that is run."""


def _check_options(options: Any) -> str | None:
    options = options or {}
    rejected = [f"{name} ({why})" for name, why in REJECTED_OPTIONS.items() if name in options]
    if options.get("trust_remote_code"):
        rejected.append("trust_remote_code (code in the folder of a tokenizer is never run)")
    return f"contains {', '.join(rejected)}" if rejected else None


def _idle_options(options: Any) -> str | None:
    idle = [name for name, value in (options or {}).items() if name in IDLE_OPTIONS and value is not True]
    return f"contains {', '.join(idle)}, which has no effect" if idle else None


def _unread_options(options: Any, kind: Any) -> str | None:
    read = {name: value for name, value in (options or {}).items() if name not in IDLE_OPTIONS}
    if read and kind not in (None, "HuggingFaceTokenizer"):
        return f"is {read!r} with tokenizer_type={kind}"
    return None


def _check_null_eod(end: Any, kind: Any, size: Any) -> str | None:
    if end is None or kind != "NullTokenizer" or not size or 0 <= end < size:
        return None
    return f"{end} is not in the range from 0 to {size - 1}"


def _check_names(names: Any) -> str | None:
    fine = not names or (all(names) and len(set(names)) == len(names))
    return None if fine else f"{names}"


def _two_templates(text: Any, path: Any, name: Any) -> str | None:
    values = {"chat_template": text, "chat_template_path": path, "tokenizer_prompt_format": name}
    set_fields = [field for field in values if values[field] is not None]
    return f"{' and '.join(set_fields)} are set" if len(set_fields) > 1 else None


def _unused_template(
    text: Any, path: Any, form: Any, finetuning: Any, options: Any, pretraining: Any
) -> str | None:
    values = {"chat_template_path": path, "tokenizer_prompt_format": form}
    settings = [] if text is None else ["chat_template"]
    settings += [f"{name}={value}" for name, value in values.items() if value is not None]
    is_read = chat_requested(options) and options.get("use_hf_tokenizer_chat_template") is True
    is_unused = pretraining is not None or (finetuning is not None and not is_read)
    return f"{settings[0]} is set" if settings and is_unused else None


def _no_chat_tokens(kind: Any, options: Any) -> str | None:
    fine = not chat_requested(options) or kind in CHAT_TOKENIZERS
    return None if fine else f"{kind} with dataset_kwargs.chat=true"


def chat_requested(options: Any) -> bool:
    """Return True if `dataset_kwargs` requests conversations that a chat template renders."""
    return isinstance(options, Mapping) and options.get("chat") is True


def _only_for(number: int, name: str, kinds: tuple[str, ...], *, neutral: object, requested: object) -> Rule:
    """Return a rule that rejects a field for the tokenizer types that do not read it."""
    return requires(
        f"D{number}",
        {f"tokenizer.{name}": other_than(None, neutral)},
        {"tokenizer.tokenizer_type": among(*kinds)},
        why=f"only {' and '.join(kinds)} reads it",
        fix=f"Leave it unset, or set tokenizer.tokenizer_type to {kinds[0]}.",
        fails=(requested, "ByteTokenizer"),
        passes=(requested, kinds[0]),
    )


_FORMAT = "tokenizer.tokenizer_prompt_format"
_PADDING = "Leave it unset and set model.make_vocab_size_divisible_by or model.vocab_size."
_FILE = "Leave it unset; the tokenizer.json defines the tokenizer completely."
_CHAT = "Leave it unset and format conversations before they are tokenized."
_SENTENCEPIECE = "Leave it at its default; the file defines the model. Use special_tokens to add tokens."

_INERT: tuple[tuple[int, str, object, object, str], ...] = (
    (21, "padded_vocab_size", None, 50304, _PADDING),
    (22, "pad_vocab_size", True, False, "Leave it at true; a model.vocab_size is not padded."),
    (23, "make_vocab_size_divisible_by", 1, 128, _PADDING),
    (24, "tensor_model_parallel_size", 1, 2, _PADDING),
    (28, "metadata_path", None, "metadata.json", _FILE),
    (31, "tokenizer_hf_no_use_fast", False, True, _FILE),
    (33, "null_tokenizer_pad_id", -1, 3, "Leave it at -1; no token is treated as padding."),
    (38, "tokenizer_sentencepiece_legacy", False, True, _SENTENCEPIECE),
    (39, "tokenizer_sentencepiece_ignore_extra_whitespaces", True, False, _SENTENCEPIECE),
    (42, "sp_tokenizer_kwargs", {}, {"legacy": True}, _SENTENCEPIECE),
    (44, "image_tag_type", None, "llava", _CHAT),
    (45, "force_system_message", False, True, _CHAT),
)
"""Fields of supported tokenizers that are not implemented: rule number, name, neutral value, example, fix."""


_SOURCE = tuple(
    f"tokenizer.{name}"
    for name in ("tokenizer_type", "tokenizer_model", "vocab_size", "vocab_file", "merge_file")
)

RULES: tuple[Rule, ...] = (
    at_most("SZ04c", "tokenizer.vocab_size", 10**8, why=MANY_ENTRIES),
    rule(
        "D11",
        "tokenizer.tokenizer_type",
        _check_type,
        why="a tokenizer must convert text to ids and back, and have an end-of-document token",
        fix=f"Use one of {', '.join(filter(None, SUPPORTED_TOKENIZERS))}.",
        fails=("BertWordPieceCase",),
        passes=("HuggingFaceTokenizer",),
    ),
    rule(
        "D12",
        _SOURCE,
        _tokenizer_source,
        why="every type is read from local files, except NullTokenizer, which is defined by its size",
        fix="Set tokenizer.tokenizer_model to a tokenizer.json, its folder, a .model or a TikToken list; for "
        "GPT2BPETokenizer tokenizer.vocab_file and tokenizer.merge_file; for NullTokenizer tokenizer.vocab_size.",
        fails=("NullTokenizer", None, None, None, None),
        passes=("GPT2BPETokenizer", None, None, "vocab.json", "merges.txt"),
    ),
    in_range(
        "D14",
        "tokenizer.vocab_extra_ids",
        0,
        why="sentinels follow the entries of the tokenizer, and a negative number would remove entries",
        fix="Set 0 for no sentinels, or 100 for a T5.",
    ),
    rule(
        "D50",
        within("tokenizer", "null_tokenizer_eod_id tokenizer_type vocab_size"),
        _check_null_eod,
        why="the end-of-document id must be an entry of the tokenizer, because the embedding has one row per entry",
        fix="Set a number below tokenizer.vocab_size, or leave it unset for the last entry.",
        fails=(50, "NullTokenizer", 50),
        passes=(49, "NullTokenizer", 50),
    ),
    rule(
        "D29",
        "tokenizer.special_tokens",
        _check_names,
        why="tokens are identified by their names",
        fix="Set a nonempty, unique name for each special token.",
        fails=(["<pad>", "<pad>"],),
        passes=(["<pad>", "<sep>"],),
    ),
    _only_for(26, "vocab_file", ("GPT2BPETokenizer",), neutral=None, requested="vocab.json"),
    _only_for(27, "merge_file", ("GPT2BPETokenizer",), neutral=None, requested="merges.txt"),
    _only_for(
        30, "tokenizer_hf_no_include_special_tokens", ("HuggingFaceTokenizer",), neutral=False, requested=True
    ),
    rule(
        "D32",
        "tokenizer.hf_tokenizer_kwargs",
        _check_options,
        why="keyword arguments must affect the ids, and must not load anything from elsewhere",
        fix="Remove these keys; others, such as add_bos_token or eos_token, are passed to transformers.",
        fails=({"use_fast": False},),
        passes=({"add_bos_token": True},),
    ),
    rule(
        "D115",
        "tokenizer.hf_tokenizer_kwargs",
        _idle_options,
        why="the tokenizer is that of tokenizer.tokenizer_model, of which no code is run",
        fix="Remove these keys.",
        fails=({"revision": "main"},),
        passes=({"add_bos_token": True},),
        severity="warning",
    ),
    rule(
        "D84",
        within("tokenizer", "hf_tokenizer_kwargs tokenizer_type"),
        _unread_options,
        why="only HuggingFaceTokenizer reads it",
        fix="Leave it unset, or set tokenizer.tokenizer_type to HuggingFaceTokenizer.",
        fails=({"add_bos_token": True}, "ByteTokenizer"),
        passes=({"add_bos_token": True}, "HuggingFaceTokenizer"),
    ),
    unsupported(
        "D40",
        "tokenizer.trust_remote_code",
        False,
        why="it would run Python code from the folder of the tokenizer with the permissions of the user, on every "
        "rank, and the configuration does not determine what that code does",
        fix="Set tokenizer.trust_remote_code=false. Convert the tokenizer once, where its code is trusted, with "
        "save_pretrained, and set tokenizer.tokenizer_model to the tokenizer.json that it writes.",
        fails=True,
    ),
    rule(
        "D99",
        ("tokenizer.tokenizer_type", "facts.tokenizer_error"),
        lambda kind, error: None if error is None else f"{kind} cannot be read ({error.rstrip('.')})",
        why="a run loads its tokenizer before it builds the model and the datasets",
        fix="Correct the path or the file, or set the type that reads it.",
        fails=("HuggingFaceTokenizer", "tokenizer.json: no such file."),
        passes=("HuggingFaceTokenizer", None),
    ),
    one_of(
        "D43",
        _FORMAT,
        (None, *PROMPT_FORMATS),
        why="only these prompt formats of Megatron Core are known",
        fix="Use one of these names, or set tokenizer.chat_template_path to a Jinja template.",
        fails="nemotron",
        passes="identity",
    ),
    rule(
        "D100",
        ("tokenizer.chat_template", "tokenizer.chat_template_path", _FORMAT),
        _two_templates,
        why="a conversation is rendered by one template",
        fix="Set only one of them.",
        fails=("{{ messages }}", "chat.jinja", None),
        passes=(None, "chat.jinja", None),
    ),
    rule(
        "D101",
        (
            "tokenizer.chat_template",
            "tokenizer.chat_template_path",
            _FORMAT,
            "dataset.made_up",
            "dataset.dataset_kwargs",
            "dataset.eod_mask_loss",
        ),
        _unused_template,
        why="only conversations of fine-tuning data with dataset_kwargs.chat=true are rendered by it",
        fix="Set dataset.dataset_kwargs.chat=true and use_hf_tokenizer_chat_template=true, or leave it unset.",
        fails=(None, "chat.jinja", None, False, None, None),
        passes=(
            None,
            "chat.jinja",
            None,
            False,
            {"chat": True, "use_hf_tokenizer_chat_template": True},
            None,
        ),
    ),
    rule(
        "D102",
        ("tokenizer.tokenizer_type", "dataset.dataset_kwargs"),
        _no_chat_tokens,
        why="the special tokens of a chat template must be entries of the vocabulary, which this type never produces "
        "from a text",
        fix="Use HuggingFaceTokenizer with the tokenizer.json of the model, or dataset_kwargs.chat=false.",
        fails=("SentencePieceTokenizer", {"chat": True}),
        passes=("HuggingFaceTokenizer", {"chat": True}),
    ),
    _only_for(36, "tiktoken_pattern", ("TikTokenizer",), neutral=None, requested="v1"),
    _only_for(37, "tiktoken_num_special_tokens", ("TikTokenizer",), neutral=1000, requested=10),
    one_of(
        "D15",
        "tokenizer.tiktoken_pattern",
        (None, "v1", "v2"),
        why="it splits a text before bytes are merged, and there are two versions",
        fix="Use v2, or v1 for lists that were created with it.",
        fails="v3",
        passes="v1",
    ),
    *(
        unsupported(f"D{number}", f"tokenizer.{name}", neutral, fails=requested, fix=fix)
        for number, name, neutral, requested, fix in _INERT
    ),
)
"""All rules for the section."""
