"""The tokenizer's configuration section. Standard library only."""

from dataclasses import dataclass, field
from typing import Any

from mb_data.strict_fields import StrictFields


@dataclass(kw_only=True)
class TokenizerConfig(StrictFields):
    """Which tokenizer, and the size of the vocabulary.

    Types that are not supported are refused by rule D11, fields that nothing reads by the rules from D21 on.
    """

    vocab_size: int | None = None
    """Entries before padding; the NullTokenizer needs it, the TikTokenizer cuts its list there, others know it."""

    padded_vocab_size: int | None = None
    """Entries after padding; None: computed."""

    pad_vocab_size: bool = True
    """Pad the vocabulary to a multiple that the model's shards need."""

    vocab_file: str | None = None
    """GPT2BPETokenizer: the `vocab.json`."""

    merge_file: str | None = None
    """GPT2BPETokenizer: the `merges.txt`."""

    vocab_extra_ids: int = 0
    """Additional sentinel entries behind the tokenizer's own, for T5: number k is written `<extra_id_k>`."""

    tokenizer_type: str | None = None
    """`HuggingFaceTokenizer`: a local tokenizer.json or folder; `SentencePieceTokenizer`, also called
    `GPTSentencePieceTokenizer` and `Llama2Tokenizer`: a .model file; `TikTokenizer`: a JSON list of entries;
    `GPT2BPETokenizer`: vocab.json and merges.txt; `ByteTokenizer`: the 256 bytes and an end of document;
    `NullTokenizer`: numbers separated by blanks. None: the dataset brings its own."""

    tokenizer_model: str | None = None
    """Path of the tokenizer's file; HuggingFaceTokenizer: also of a folder as `save_pretrained` writes it."""

    metadata_path: str | None = None
    """JSON file with the tokenizer's metadata."""

    special_tokens: list[str] | None = None
    """Names of tokens that no text becomes, added behind the tokenizer's entries unless it has them; for TikTokenizer
    the first entries instead, the customary ones among them. None: no more than there are."""

    tiktoken_pattern: str | None = None
    """Version of TikToken's split pattern: `v1` or `v2`; None: `v2`."""

    tiktoken_num_special_tokens: int = 1000
    """Entries that TikToken reserves for special tokens."""

    tokenizer_sentencepiece_legacy: bool = False
    """SentencePiece's older treatment of special tokens."""

    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    """Take several blanks for one in SentencePiece."""

    tokenizer_hf_no_use_fast: bool = False
    """Use the slow Hugging Face tokenizer."""

    tokenizer_hf_no_include_special_tokens: bool = False
    """Leave out the special tokens that the tokenizer puts around a text, such as a begin of sequence."""

    trust_remote_code: bool = False
    """Run Python code that comes with a tokenizer. Refused (D40): the code would have this user's rights."""

    null_tokenizer_eod_id: int | None = None
    """End of document of the NullTokenizer; None: the last entry."""

    null_tokenizer_pad_id: int = -1
    """Padding id of the NullTokenizer; -1: none."""

    chat_template: str | None = None
    """Text of a Jinja chat template."""

    chat_template_path: str | None = None
    """File with a Jinja chat template, instead of `chat_template`."""

    make_vocab_size_divisible_by: int = 1
    """The padded vocabulary is a multiple of this times the tensor-parallel size."""

    tensor_model_parallel_size: int = 1
    """Tensor-parallel size used for padding."""

    rank: int = 0
    """Rank that is named in messages."""

    use_tokenizer_vocab_size: bool = False
    """Take the model's vocabulary from the tokenizer even where the model has a size of its own."""

    hf_tokenizer_kwargs: dict[str, Any] | None = field(default_factory=dict)
    """HuggingFaceTokenizer: keyword arguments for `transformers`, such as add_bos_token; the ids are those of its fast
    tokenizer."""

    sp_tokenizer_kwargs: dict[str, Any] | None = field(default_factory=dict)
    """Options of SentencePiece tokenizers, as older configurations give them."""

    tokenizer_prompt_format: str | None = None
    """Name of the prompt format of the SFT tokenizers."""

    image_tag_type: str | None = None
    """How image placeholders are wrapped."""

    force_system_message: bool | None = False
    """Always begin a conversation with a system message."""
