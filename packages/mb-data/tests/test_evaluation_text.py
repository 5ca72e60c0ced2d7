"""Texts of an evaluation harness: special tokens, the beginning of a sequence, conversations."""

import json

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mb_data import ByteTokenizer
from mb_data.chat.encoding import TokenizerWithTemplate
from mb_data.chat.prompt import EvaluationTokenizer
from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import NullTokenizer
from mb_data.tokenizers.bpe import JsonTokenizer

TEMPLATE = (
    "{{ bos_token }}{% for each in messages %}{{ each.content }}{% endfor %}"
    "{% if add_generation_prompt %}b{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Tokenizer of the letters a and b, with two special tokens."""
    base = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    base.pre_tokenizer, base.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    base.add_special_tokens(["<s>", "</s>"])
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    folder = tmp_path_factory.mktemp("tokenizer")
    return JsonTokenizer(base.to_str().encode(), source=folder, settings=json.dumps(settings).encode())


@pytest.mark.parametrize(
    ("text", "options", "ids"),
    [
        ("ab", {}, [2, 0, 1]),
        ("ab", {"add_bos": False}, [0, 1]),
        ("<s>a</s>", {}, [2, 0, 3]),
    ],
)
def test_special_tokens_are_entries_and_a_text_begins_once(tokenizer, text, options, ids):
    assert EvaluationTokenizer(tokenizer, add_bos=True).encode(text, **options) == ids


def test_special_tokens_have_no_text(tokenizer):
    texts = EvaluationTokenizer(tokenizer)
    assert texts.decode([2, 0, 1, 3]) == "ab"
    assert texts.encode("ab") == [0, 1]
    assert (texts.bos, texts.eod, texts.vocab_size) == (None, 3, 4)


def test_a_conversation_is_rendered_up_to_the_answer(tokenizer):
    texts = EvaluationTokenizer(tokenizer)
    messages = [{"role": "user", "content": "a"}]
    assert texts.render(messages, add_generation_prompt=True) == "<s>ab"
    assert texts.render(messages, add_generation_prompt=False) == "<s>a"
    with pytest.raises(TokenizerError, match="has no chat template"):
        EvaluationTokenizer(ByteTokenizer()).render(messages, add_generation_prompt=True)


def test_an_answer_ends_where_the_template_ends_it(tokenizer):
    assert EvaluationTokenizer(tokenizer).end_of_answer is None
    closed = f"{TEMPLATE}</s>\n"
    assert EvaluationTokenizer(TokenizerWithTemplate(tokenizer, closed)).end_of_answer == 3


def test_tokenizers_without_special_tokens_encode_text():
    assert EvaluationTokenizer(NullTokenizer(9)).encode("1 2") == [1, 2]
    with pytest.raises(TokenizerError, match="no beginning-of-sequence token"):
        EvaluationTokenizer(ByteTokenizer(), add_bos=True)
