"""Rules for the section `tokenizer`. Standard library only."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mb_data.chat.prompt_formats import PROMPT_FORMATS
from mb_schema.rule_kinds import (
    among,
    at_most,
    in_range,
    one_of,
    other_than,
    requires,
    section_rule,
    unsupported,
)
from mb_schema.rules import Rule, rules_in

tokenizer_rule = partial(section_rule, "tokenizer")

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


@tokenizer_rule(
    "D11",
    why="a tokenizer must convert text to ids and back, and have an end-of-document token",
    fix=f"Use one of {', '.join(filter(None, SUPPORTED_TOKENIZERS))}.",
    fails={"tokenizer_type": "BertWordPieceCase"},
    passes={"tokenizer_type": "HuggingFaceTokenizer"},
)
def _check_type(tokenizer_type):
    if tokenizer_type in SUPPORTED_TOKENIZERS:
        return None
    return f"{tokenizer_type!r}: {_UNSUPPORTED_TYPES.get(tokenizer_type, 'the type does not exist')}"


@tokenizer_rule(
    "D12",
    why="every type is read from local files, except NullTokenizer, which is defined by its size",
    fix="Set tokenizer.tokenizer_model to a tokenizer.json, its folder, a .model or a TikToken list; for "
    "GPT2BPETokenizer tokenizer.vocab_file and tokenizer.merge_file; for NullTokenizer tokenizer.vocab_size.",
    fails={"tokenizer_type": "NullTokenizer"},
    passes={"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "vocab.json", "merge_file": "merges.txt"},
)
def _tokenizer_source(tokenizer_type, tokenizer_model, vocab_size, vocab_file, merge_file):
    if tokenizer_type in FROM_MODEL and not tokenizer_model:
        return f"{tokenizer_type} without tokenizer_model"
    if tokenizer_type == "NullTokenizer" and (not vocab_size or vocab_size < 1):
        return f"NullTokenizer with vocab_size={vocab_size}"
    if tokenizer_type == "GPT2BPETokenizer" and not (vocab_file and merge_file):
        return f"GPT2BPETokenizer with vocab_file={vocab_file!r}, merge_file={merge_file!r}"
    return None


REJECTED_OPTIONS = {
    "include_special_tokens": "set tokenizer.tokenizer_hf_no_include_special_tokens",
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


IDLE_OPTIONS = ("revision", "trust_remote_code", "use_fast")
"""Keyword arguments without effect of their own: a folder has one revision and a tokenizer.json, and its code runs by
`tokenizer.trust_remote_code`."""


@tokenizer_rule(
    "D32",
    why="keyword arguments must affect the ids, and must not load anything from elsewhere",
    fix="Remove these keys; others, such as add_bos_token or eos_token, are passed to transformers.",
    fails={"hf_tokenizer_kwargs": {"use_fast": False}},
    passes={"hf_tokenizer_kwargs": {"add_bos_token": True}},
)
def _check_options(hf_tokenizer_kwargs):
    hf_tokenizer_kwargs = hf_tokenizer_kwargs or {}
    rejected = [f"{name} ({why})" for name, why in REJECTED_OPTIONS.items() if name in hf_tokenizer_kwargs]
    if not hf_tokenizer_kwargs.get("use_fast", True):
        rejected.append("use_fast=false (ids come from a tokenizer.json, which slow tokenizers do not have)")
    return f"contains {', '.join(rejected)}" if rejected else None


@tokenizer_rule(
    "D40",
    why="the code in the folder of a tokenizer has the permissions of the user, and runs only with consent, which no "
    "file gives",
    fix="If you trust the author, set tokenizer.trust_remote_code=true on the command line, or in code. Otherwise "
    "remove the key: a tokenizer.json in the folder is read without code.",
    fails={"hf_tokenizer_kwargs": {"trust_remote_code": True}},
    passes={"hf_tokenizer_kwargs": {"trust_remote_code": True}, "trust_remote_code": True},
)
def _consent_to_code(hf_tokenizer_kwargs, trust_remote_code):
    if (hf_tokenizer_kwargs or {}).get("trust_remote_code") and not trust_remote_code:
        return "requests trust_remote_code"
    return None


@tokenizer_rule(
    "D115",
    why="the folder of tokenizer.tokenizer_model has one revision, and trust_remote_code alone decides on code",
    fix="Remove these keys.",
    fails={"hf_tokenizer_kwargs": {"revision": "main"}},
    passes={"hf_tokenizer_kwargs": {"add_bos_token": True}},
    severity="warning",
)
def _idle_options(hf_tokenizer_kwargs):
    idle = [
        name
        for name, value in (hf_tokenizer_kwargs or {}).items()
        if name in IDLE_OPTIONS and value is not True and name != "use_fast"
    ]
    return f"contains {', '.join(idle)}, which has no effect" if idle else None


@tokenizer_rule(
    "D84",
    why="only HuggingFaceTokenizer reads it",
    fix="Leave it unset, or set tokenizer.tokenizer_type to HuggingFaceTokenizer.",
    fails={"hf_tokenizer_kwargs": {"add_bos_token": True}, "tokenizer_type": "ByteTokenizer"},
    passes={"tokenizer_type": "HuggingFaceTokenizer"},
)
def _unread_options(hf_tokenizer_kwargs, tokenizer_type):
    read = {name: value for name, value in (hf_tokenizer_kwargs or {}).items() if name not in IDLE_OPTIONS}
    if read and tokenizer_type not in (None, "HuggingFaceTokenizer"):
        return f"is {read!r} with tokenizer_type={tokenizer_type}"
    return None


@tokenizer_rule(
    "D50",
    why="the end-of-document id must be an entry of the tokenizer, because the embedding has one row per entry",
    fix="Set a number below tokenizer.vocab_size, or leave it unset for the last entry.",
    fails={"null_tokenizer_eod_id": 50, "tokenizer_type": "NullTokenizer", "vocab_size": 50},
    passes={"null_tokenizer_eod_id": 49},
)
def _check_null_eod(null_tokenizer_eod_id, tokenizer_type, vocab_size):
    if (
        null_tokenizer_eod_id is None
        or tokenizer_type != "NullTokenizer"
        or not vocab_size
        or 0 <= null_tokenizer_eod_id < vocab_size
    ):
        return None
    return f"{null_tokenizer_eod_id} is not in the range from 0 to {vocab_size - 1}"


@tokenizer_rule(
    "D29",
    why="tokens are identified by their names",
    fix="Set a nonempty, unique name for each special token.",
    fails={"special_tokens": ["<pad>", "<pad>"]},
    passes={"special_tokens": ["<pad>", "<sep>"]},
)
def _check_names(special_tokens):
    fine = not special_tokens or (all(special_tokens) and len(set(special_tokens)) == len(special_tokens))
    return None if fine else f"{special_tokens}"


@tokenizer_rule(
    "D100",
    why="a conversation is rendered by one template",
    fix="Set only one of them.",
    fails={"chat_template": "{{ messages }}", "chat_template_path": "chat.jinja"},
    passes={"chat_template": None},
)
def _two_templates(chat_template, chat_template_path, tokenizer_prompt_format):
    values = {
        "chat_template": chat_template,
        "chat_template_path": chat_template_path,
        "tokenizer_prompt_format": tokenizer_prompt_format,
    }
    set_fields = [field for field in values if values[field] is not None]
    return f"{' and '.join(set_fields)} are set" if len(set_fields) > 1 else None


@tokenizer_rule(
    "D101",
    why="only conversations of fine-tuning data with dataset_kwargs.chat=true are rendered by it",
    fix="Set dataset.dataset_kwargs.chat=true and use_hf_tokenizer_chat_template=true, or leave it unset.",
    fails={"chat_template": None, "chat_template_path": "chat.jinja", "dataset__made_up": False},
    passes={"dataset__dataset_kwargs": {"chat": True, "use_hf_tokenizer_chat_template": True}},
)
def _unused_template(
    chat_template,
    chat_template_path,
    tokenizer_prompt_format,
    dataset__made_up,
    dataset__dataset_kwargs,
    dataset__eod_mask_loss,
):
    values = {"chat_template_path": chat_template_path, "tokenizer_prompt_format": tokenizer_prompt_format}
    settings = [] if chat_template is None else ["chat_template"]
    settings += [f"{name}={value}" for name, value in values.items() if value is not None]
    is_read = (
        chat_requested(dataset__dataset_kwargs)
        and dataset__dataset_kwargs.get("use_hf_tokenizer_chat_template") is True
    )
    is_unused = dataset__eod_mask_loss is not None or (dataset__made_up is not None and not is_read)
    return f"{settings[0]} is set" if settings and is_unused else None


@tokenizer_rule(
    "D102",
    why="the special tokens of a chat template must be entries of the vocabulary, which this type never produces "
    "from a text",
    fix="Use HuggingFaceTokenizer with the tokenizer.json of the model, or dataset_kwargs.chat=false.",
    fails={"tokenizer_type": "SentencePieceTokenizer", "dataset__dataset_kwargs": {"chat": True}},
    passes={"tokenizer_type": "HuggingFaceTokenizer"},
)
def _no_chat_tokens(tokenizer_type, dataset__dataset_kwargs):
    fine = not chat_requested(dataset__dataset_kwargs) or tokenizer_type in CHAT_TOKENIZERS
    return None if fine else f"{tokenizer_type} with dataset_kwargs.chat=true"


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
        fails={f"tokenizer.{name}": requested, "tokenizer.tokenizer_type": "ByteTokenizer"},
        passes={"tokenizer.tokenizer_type": kinds[0]},
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


@tokenizer_rule(
    "D99",
    why="a run loads its tokenizer before it builds the model and the datasets",
    fix="Correct the path or the file, or set the type that reads it.",
    fails={"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_error": "tokenizer.json: no such file."},
    passes={"tokenizer_error": None},
)
def _unreadable_tokenizer(tokenizer_type, *, tokenizer_error):
    return (
        None
        if tokenizer_error is None
        else f"{tokenizer_type} cannot be read ({tokenizer_error.rstrip('.')})"
    )


RULES: tuple[Rule, ...] = (
    at_most("SZ04c", "tokenizer.vocab_size", 10**8, why=MANY_ENTRIES),
    *rules_in(globals()),
    in_range(
        "D14",
        "tokenizer.vocab_extra_ids",
        0,
        why="sentinels follow the entries of the tokenizer, and a negative number would remove entries",
        fix="Set 0 for no sentinels, or 100 for a T5.",
    ),
    _only_for(26, "vocab_file", ("GPT2BPETokenizer",), neutral=None, requested="vocab.json"),
    _only_for(27, "merge_file", ("GPT2BPETokenizer",), neutral=None, requested="merges.txt"),
    _only_for(
        30, "tokenizer_hf_no_include_special_tokens", ("HuggingFaceTokenizer",), neutral=False, requested=True
    ),
    _only_for(129, "trust_remote_code", ("HuggingFaceTokenizer",), neutral=False, requested=True),
    one_of(
        "D43",
        _FORMAT,
        (None, *PROMPT_FORMATS),
        why="only these prompt formats of Megatron Core are known",
        fix="Use one of these names, or set tokenizer.chat_template_path to a Jinja template.",
        fails="nemotron",
        passes="identity",
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
