"""Configuration section of the tokenizer. Standard library only."""

from dataclasses import dataclass, field
from typing import Any

from mb_schema.sections import StrictFields


@dataclass(kw_only=True)
class TokenizerConfig(StrictFields):
    """Section for the type of the tokenizer and the size of its vocabulary.

    Rule D11 rejects unsupported types. The rules from D21 on reject fields that are not implemented.
    """

    vocab_size: int | None = None
    """Entries before padding. Required by NullTokenizer; TikTokenizer truncates its list to it; unused by others."""

    padded_vocab_size: int | None = None
    """Entries after padding; None: computed."""

    pad_vocab_size: bool = True
    """Pad the vocabulary to a multiple that the shards of the model require."""

    vocab_file: str | None = None
    """GPT2BPETokenizer: the `vocab.json`."""

    merge_file: str | None = None
    """GPT2BPETokenizer: the `merges.txt`."""

    vocab_extra_ids: int = 0
    """Number of sentinel entries after those of the tokenizer, for T5. The text of sentinel k is `<extra_id_k>`."""

    tokenizer_type: str | None = None
    """`HuggingFaceTokenizer`: a local tokenizer.json or folder; `SentencePieceTokenizer`, also called
    `GPTSentencePieceTokenizer` and `Llama2Tokenizer`: a .model file; `TikTokenizer`: a JSON list of entries;
    `GPT2BPETokenizer`: vocab.json and merges.txt; `ByteTokenizer`: the 256 bytes and an end-of-document
    token; `NullTokenizer`: numbers separated by spaces. None: the dataset provides the tokenizer."""

    tokenizer_model: str | None = None
    """Path of the tokenizer file. HuggingFaceTokenizer: also a folder written by `save_pretrained`."""

    metadata_path: str | None = None
    """JSON file with metadata of the tokenizer."""

    special_tokens: list[str] | None = None
    """Names of tokens that are never produced from text. They are added after the entries of the tokenizer unless it
    has them. TikTokenizer: names of the first entries, including the default ones. None: no additional tokens."""

    tiktoken_pattern: str | None = None
    """Version of TikToken's split pattern: `v1` or `v2`; None: `v2`."""

    tiktoken_num_special_tokens: int = 1000
    """Number of entries that TikToken reserves for special tokens."""

    tokenizer_sentencepiece_legacy: bool = False
    """Legacy treatment of special tokens in SentencePiece."""

    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    """Collapse consecutive spaces in SentencePiece."""

    tokenizer_hf_no_use_fast: bool = False
    """Use the slow Hugging Face tokenizer."""

    tokenizer_hf_no_include_special_tokens: bool = False
    """Omit the special tokens that the tokenizer adds around a text, such as a beginning-of-sequence token."""

    trust_remote_code: bool = field(
        default=False,
        metadata={
            "consent": "the author of a tokenizer could execute any code. Remove the line, and pass "
            "tokenizer.trust_remote_code=true on the command line."
        },
    )
    """HuggingFaceTokenizer: run the Python code in the folder of a tokenizer that is made of code, on every rank and
    with the permissions of the user. A file cannot set it."""

    null_tokenizer_eod_id: int | None = None
    """End-of-document id of the NullTokenizer; None: the last entry."""

    null_tokenizer_pad_id: int = -1
    """Padding id of the NullTokenizer; -1: none."""

    chat_template: str | None = None
    """Text of the Jinja template that renders conversations of fine-tuning data. None: that of the files."""

    chat_template_path: str | None = None
    """File with a Jinja chat template, instead of `chat_template`."""

    make_vocab_size_divisible_by: int = 1
    """The padded vocabulary is a multiple of this times the tensor-parallel size."""

    tensor_model_parallel_size: int = 1
    """Tensor-parallel size used for padding."""

    rank: int = 0
    """Rank that appears in messages."""

    use_tokenizer_vocab_size: bool = False
    """Use the vocabulary size of the tokenizer even if the model sets one."""

    hf_tokenizer_kwargs: dict[str, Any] | None = field(default_factory=dict)
    """HuggingFaceTokenizer: keyword arguments for `transformers`, such as add_bos_token. The ids are those of its fast
    tokenizer."""

    sp_tokenizer_kwargs: dict[str, Any] | None = field(default_factory=dict)
    """Options of SentencePiece tokenizers in older configurations."""

    tokenizer_prompt_format: str | None = None
    """Chat template by the name of a prompt format of Megatron Core, instead of `chat_template`: identity,
    nemotron-h-aligned, nemotron-nano-v2, or default for that of the files."""

    image_tag_type: str | None = None
    """Type of the tags around image placeholders."""

    force_system_message: bool | None = False
    """Always begin a conversation with a system message."""
