"""What the section `tokenizer` refuses. Standard library only."""

from typing import Any

from mb_data.rule import Rule, inert, unless

SUPPORTED_TOKENIZERS = (None, "HuggingFaceTokenizer", "ByteTokenizer", "NullTokenizer")
BYTE_ENTRIES = 257
"""Entries that every byte-level vocabulary has: the bytes and the end of a document."""


def _tokenizer_source(kind: Any, model: Any, vocab_size: Any) -> str | None:
    if kind == "HuggingFaceTokenizer" and not model:
        return "HuggingFaceTokenizer without tokenizer_model"
    if kind == "NullTokenizer" and not vocab_size:
        return f"NullTokenizer with vocab_size={vocab_size}"
    return None


_PADDING = "Leave it unset and set model.make_vocab_size_divisible_by or model.vocab_size."
_FILE = "Leave it unset; a tokenizer is what its tokenizer.json says."
_CHAT = "Leave it unset and format conversations before they are tokenized."
_OTHER = "Leave it as it is; it speaks of kinds of tokenizers that are not read here."

_INERT: tuple[tuple[int, str, object, object, str], ...] = (
    (21, "padded_vocab_size", None, 50304, _PADDING),
    (22, "pad_vocab_size", True, False, "Leave it set; a model.vocab_size is taken as it is."),
    (23, "make_vocab_size_divisible_by", 1, 128, _PADDING),
    (24, "tensor_model_parallel_size", 1, 2, _PADDING),
    (25, "use_tokenizer_vocab_size", False, True, "Leave model.vocab_size unset: it is the tokenizer's."),
    (26, "vocab_file", None, "vocab.json", _FILE),
    (27, "merge_file", None, "merges.txt", _FILE),
    (28, "metadata_path", None, "metadata.json", _FILE),
    (29, "special_tokens", None, ["<pad>"], _FILE),
    (31, "tokenizer_hf_no_use_fast", False, True, _FILE),
    (32, "hf_tokenizer_kwargs", {}, {"use_fast": False}, _FILE),
    (33, "null_tokenizer_pad_id", -1, 3, "Leave it at -1; no token is taken for padding."),
    (34, "chat_template", None, "{{ messages }}", _CHAT),
    (35, "chat_template_path", None, "chat.jinja", _CHAT),
    (36, "tiktoken_pattern", None, "v2", _OTHER),
    (37, "tiktoken_num_special_tokens", 1000, 10, _OTHER),
    (38, "tokenizer_sentencepiece_legacy", False, True, _OTHER),
    (39, "tokenizer_sentencepiece_ignore_extra_whitespaces", True, False, _OTHER),
    (40, "trust_remote_code", False, True, "Leave it off; code that comes with a tokenizer is never run."),
    (42, "sp_tokenizer_kwargs", {}, {"legacy": True}, _OTHER),
    (43, "tokenizer_prompt_format", None, "nemotron", _CHAT),
    (44, "image_tag_type", None, "llava", _CHAT),
    (45, "force_system_message", False, True, _CHAT),
)
"""Fields that a supported tokenizer could have heeded.

Number of the rule, name, value that asks for nothing, example, what to do.
"""


RULES: tuple[Rule, ...] = (
    Rule(
        id="D11",
        fields=("tokenizer.tokenizer_type",),
        test=lambda kind: unless(kind in SUPPORTED_TOKENIZERS, f"{kind!r} is not supported yet"),
        why="only local tokenizer.json files, bytes and plain numbers can be read",
        fix="Use HuggingFaceTokenizer with the tokenizer's tokenizer.json, ByteTokenizer or NullTokenizer.",
        fails={"tokenizer.tokenizer_type": "SentencePieceTokenizer"},
        passes={"tokenizer.tokenizer_type": "HuggingFaceTokenizer"},
    ),
    Rule(
        id="D12",
        fields=("tokenizer.tokenizer_type", "tokenizer.tokenizer_model", "tokenizer.vocab_size"),
        test=_tokenizer_source,
        why="the first is read from a file, the second knows nothing but its size",
        fix="Set tokenizer.tokenizer_model to a tokenizer.json or its folder, or tokenizer.vocab_size.",
        fails={
            "tokenizer.tokenizer_type": "NullTokenizer",
            "tokenizer.tokenizer_model": None,
            "tokenizer.vocab_size": None,
        },
        passes={
            "tokenizer.tokenizer_type": "NullTokenizer",
            "tokenizer.tokenizer_model": None,
            "tokenizer.vocab_size": 1000,
        },
    ),
    Rule(
        id="D14",
        fields=("tokenizer.vocab_extra_ids",),
        test=lambda number: unless(number is None or number >= 0, f"{number} sentinels"),
        why="they come behind the tokenizer's own entries; fewer than none would take some of those away",
        fix="Use 0 for none, or 100 for a T5.",
        fails={"tokenizer.vocab_extra_ids": -1},
        passes={"tokenizer.vocab_extra_ids": 0},
    ),
    *(
        inert(f"D{number}", f"tokenizer.{name}", neutral=neutral, asked=asked, fix=fix)
        for number, name, neutral, asked, fix in _INERT
    ),
)
"""Every rule of the section."""
