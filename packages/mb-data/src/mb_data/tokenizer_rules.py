"""What the section `tokenizer` refuses. Standard library only."""

from typing import Any

from mb_data.rule import Rule, inert, unless

END_OF_DOCUMENT = "<|endoftext|>"
"""The token that ends a document in the tokenizers that are trained here."""

SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
"""Names of one and the same: a SentencePiece model."""

FROM_MODEL = ("HuggingFaceTokenizer", "TikTokenizer", *SENTENCEPIECE)
"""Types that are read from `tokenizer_model`."""

SUPPORTED_TOKENIZERS = (None, "ByteTokenizer", "NullTokenizer", "GPT2BPETokenizer", *FROM_MODEL)

_LOSSY = "its ids do not give back the text, and the masked models that it is made for are not trained here"
_NO_IMAGE_TOKENS = (
    "places of pictures are negative numbers here (dataset.image_token_id), not entries of a vocabulary"
)
_UNSUPPORTED_TYPES = {
    "BertWordPieceLowerCase": _LOSSY,
    "BertWordPieceCase": _LOSSY,
    "MultimodalTokenizer": _NO_IMAGE_TOKENS,
    "NullMultimodalTokenizer": _NO_IMAGE_TOKENS,
    "SFTTokenizer": "conversations are formatted by the dataset of a fine-tuning, not by the tokenizer",
}
"""Types that Megatron Core has and this package has not, with the reason."""

BYTE_ENTRIES = 257
"""Entries that every byte-level vocabulary has: the bytes and the end of a document."""


def _check_type(kind: Any) -> str | None:
    if kind in SUPPORTED_TOKENIZERS:
        return None
    return f"{kind!r}: {_UNSUPPORTED_TYPES.get(kind, 'there is no such type')}"


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
    "trust_remote_code": "no code of a tokenizer's folder is run",
    "use_fast": "ids come from a tokenizer.json, which the slow tokenizers do not have",
    "revision": "nothing is downloaded",
    "subfolder": "set tokenizer.tokenizer_model to the folder itself",
    "local_files_only": "nothing is downloaded",
    "token": "nothing is downloaded",
    "cache_dir": "nothing is downloaded",
    "force_download": "nothing is downloaded",
    "proxies": "nothing is downloaded",
    "padding_side": "nothing is padded here",
    "truncation_side": "nothing is cut here",
    "model_max_length": "nothing is cut here",
    "chat_template": "conversations are formatted before they are tokenized",
}
"""Keyword arguments of Hugging Face's tokenizers that `hf_tokenizer_kwargs` does not take, with the reason."""


def _check_options(options: Any) -> str | None:
    refused = [f"{name} ({why})" for name, why in REJECTED_OPTIONS.items() if name in (options or {})]
    return f"holds {', '.join(refused)}" if refused else None


def _check_null_eod(end: Any, kind: Any, size: Any) -> str | None:
    if end is None or kind != "NullTokenizer" or not size or 0 <= end < size:
        return None
    return f"{end} is none of the numbers from 0 to {size - 1}"


def _check_names(names: Any) -> str | None:
    if not names:
        return None
    return unless(all(names) and len(set(names)) == len(names), f"{names}")


def _only_for(number: int, name: str, kinds: tuple[str, ...], *, neutral: object, requested: object) -> Rule:
    """Refuse a field for the types that do not read it."""

    def unread(value: object, kind: object) -> str | None:
        return unless(
            value is None or value == neutral or kind in kinds, f"{value!r} would have no effect for {kind}"
        )

    path, other = f"tokenizer.{name}", "tokenizer.tokenizer_type"
    return Rule(
        id=f"D{number}",
        fields=(path, other),
        test=unread,
        why=f"it is read for {' and '.join(kinds)} alone",
        fix=f"Leave it unset, or set tokenizer.tokenizer_type to {kinds[0]}.",
        fails={path: requested, other: "ByteTokenizer"},
        passes={path: requested, other: kinds[0]},
    )


_PADDING = "Leave it unset and set model.make_vocab_size_divisible_by or model.vocab_size."
_FILE = "Leave it unset; a tokenizer is what its tokenizer.json says."
_CHAT = "Leave it unset and format conversations before they are tokenized."
_SENTENCEPIECE = (
    "Leave it as it is; a SentencePiece model is what its file says, and special_tokens are added to any."
)

_INERT: tuple[tuple[int, str, object, object, str], ...] = (
    (21, "padded_vocab_size", None, 50304, _PADDING),
    (22, "pad_vocab_size", True, False, "Leave it set; a model.vocab_size is taken as it is."),
    (23, "make_vocab_size_divisible_by", 1, 128, _PADDING),
    (24, "tensor_model_parallel_size", 1, 2, _PADDING),
    (25, "use_tokenizer_vocab_size", False, True, "Leave model.vocab_size unset: it is the tokenizer's."),
    (28, "metadata_path", None, "metadata.json", _FILE),
    (31, "tokenizer_hf_no_use_fast", False, True, _FILE),
    (33, "null_tokenizer_pad_id", -1, 3, "Leave it at -1; no token is taken for padding."),
    (34, "chat_template", None, "{{ messages }}", _CHAT),
    (35, "chat_template_path", None, "chat.jinja", _CHAT),
    (38, "tokenizer_sentencepiece_legacy", False, True, _SENTENCEPIECE),
    (39, "tokenizer_sentencepiece_ignore_extra_whitespaces", True, False, _SENTENCEPIECE),
    (42, "sp_tokenizer_kwargs", {}, {"legacy": True}, _SENTENCEPIECE),
    (43, "tokenizer_prompt_format", None, "nemotron", _CHAT),
    (44, "image_tag_type", None, "llava", _CHAT),
    (45, "force_system_message", False, True, _CHAT),
)
"""Fields that a supported tokenizer could have heeded.

Number of the rule, name, value that asks for nothing, example, what to do.
"""


_SOURCE = tuple(
    f"tokenizer.{name}"
    for name in ("tokenizer_type", "tokenizer_model", "vocab_size", "vocab_file", "merge_file")
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="D11",
        fields=("tokenizer.tokenizer_type",),
        test=_check_type,
        why="a tokenizer turns text into ids that give the text back, and ends a document",
        fix=f"Use one of {', '.join(filter(None, SUPPORTED_TOKENIZERS))}.",
        fails={"tokenizer.tokenizer_type": "BertWordPieceCase"},
        passes={"tokenizer.tokenizer_type": "HuggingFaceTokenizer"},
    ),
    Rule(
        id="D12",
        fields=_SOURCE,
        test=_tokenizer_source,
        why="each is read from a file of this machine, but the NullTokenizer, which knows nothing but its size",
        fix="Set tokenizer.tokenizer_model to a tokenizer.json, its folder, a .model or TikToken's list; for "
        "GPT2BPETokenizer tokenizer.vocab_file and tokenizer.merge_file; for NullTokenizer tokenizer.vocab_size.",
        fails=dict(zip(_SOURCE, ("NullTokenizer", None, None, None, None), strict=True)),
        passes=dict(zip(_SOURCE, ("GPT2BPETokenizer", None, None, "vocab.json", "merges.txt"), strict=True)),
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
    Rule(
        id="D50",
        fields=("tokenizer.null_tokenizer_eod_id", "tokenizer.tokenizer_type", "tokenizer.vocab_size"),
        test=_check_null_eod,
        why="the end of a document is one of the tokenizer's entries, and the embedding has a row for each of these",
        fix="Set a number below tokenizer.vocab_size, or leave it unset for the last.",
        fails={
            "tokenizer.null_tokenizer_eod_id": 50,
            "tokenizer.tokenizer_type": "NullTokenizer",
            "tokenizer.vocab_size": 50,
        },
        passes={
            "tokenizer.null_tokenizer_eod_id": 49,
            "tokenizer.tokenizer_type": "NullTokenizer",
            "tokenizer.vocab_size": 50,
        },
    ),
    Rule(
        id="D29",
        fields=("tokenizer.special_tokens",),
        test=_check_names,
        why="tokens are told apart by their names",
        fix="Give each special token a name, and each once.",
        fails={"tokenizer.special_tokens": ["<pad>", "<pad>"]},
        passes={"tokenizer.special_tokens": ["<pad>", "<sep>"]},
    ),
    _only_for(26, "vocab_file", ("GPT2BPETokenizer",), neutral=None, requested="vocab.json"),
    _only_for(27, "merge_file", ("GPT2BPETokenizer",), neutral=None, requested="merges.txt"),
    _only_for(
        30, "tokenizer_hf_no_include_special_tokens", ("HuggingFaceTokenizer",), neutral=False, requested=True
    ),
    Rule(
        id="D32",
        fields=("tokenizer.hf_tokenizer_kwargs",),
        test=_check_options,
        why="what is passed must change the ids, and must not load anything from elsewhere",
        fix="Remove these keys; others, such as add_bos_token or eos_token, are passed to the library transformers.",
        fails={"tokenizer.hf_tokenizer_kwargs": {"use_fast": False}},
        passes={"tokenizer.hf_tokenizer_kwargs": {"add_bos_token": True}},
    ),
    _only_for(
        84, "hf_tokenizer_kwargs", ("HuggingFaceTokenizer",), neutral={}, requested={"add_bos_token": True}
    ),
    Rule(
        id="D40",
        fields=("tokenizer.trust_remote_code",),
        test=lambda trusted: unless(not trusted, "is on"),
        why="it would run Python code from the tokenizer's folder with this user's rights, on every rank, and what "
        "that code does is not part of the configuration",
        fix="Set tokenizer.trust_remote_code=false. Convert the tokenizer once, where its code is trusted, with "
        "save_pretrained, and set tokenizer.tokenizer_model to the tokenizer.json that it writes.",
        fails={"tokenizer.trust_remote_code": True},
        passes={"tokenizer.trust_remote_code": False},
    ),
    Rule(
        id="D99",
        fields=("tokenizer.tokenizer_type", "facts.tokenizer_error"),
        test=lambda kind, error: None if error is None else f"{kind} cannot be read ({error.rstrip('.')})",
        why="a run reads its tokenizer before it builds anything",
        fix="Correct the path of the file, or the file, or choose the type that reads it.",
        fails={
            "tokenizer.tokenizer_type": "HuggingFaceTokenizer",
            "facts.tokenizer_error": "tokenizer.json: no such file.",
        },
        passes={"tokenizer.tokenizer_type": "HuggingFaceTokenizer", "facts.tokenizer_error": None},
    ),
    _only_for(36, "tiktoken_pattern", ("TikTokenizer",), neutral=None, requested="v1"),
    _only_for(37, "tiktoken_num_special_tokens", ("TikTokenizer",), neutral=1000, requested=10),
    Rule(
        id="D15",
        fields=("tokenizer.tiktoken_pattern",),
        test=lambda pattern: unless(pattern in (None, "v1", "v2"), f"{pattern!r}"),
        why="it divides a text before bytes are merged, and there are two",
        fix="Use v2, or v1 for the lists that were made with it.",
        fails={"tokenizer.tiktoken_pattern": "v3"},
        passes={"tokenizer.tiktoken_pattern": "v1"},
    ),
    *(
        inert(f"D{number}", f"tokenizer.{name}", neutral=neutral, requested=requested, fix=fix)
        for number, name, neutral, requested, fix in _INERT
    ),
)
"""Every rule of the section."""
