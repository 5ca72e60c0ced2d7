"""Prompts: text, or a conversation up to the answer."""

import pytest

pytest.importorskip("jinja2")

from mb_data import ByteTokenizer, ExtendedTokenizer
from mb_data.chat.encoding import TokenizerWithTemplate
from mb_data.chat.prompt import encode_prompt, end_of_answer
from mb_data.errors import TokenizerError

TEMPLATE = (
    "{% for each in messages %}<{{ each.role }}>{{ each.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENIZER = TokenizerWithTemplate(ByteTokenizer(), TEMPLATE)
MESSAGES = '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Red?"}]'


@pytest.mark.parametrize(
    ("prompt", "chat", "text"),
    [
        ("Red?", False, "Red?"),
        ("Red?", True, "<user>Red?</><assistant>"),
        (MESSAGES, True, "<system>Be brief.</><user>Red?</><assistant>"),
    ],
)
def test_the_template_is_applied_up_to_the_answer(prompt, chat, text):
    assert encode_prompt(TOKENIZER, prompt, chat=chat) == (text, list(text.encode()))


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "problem"),
    [
        (ByteTokenizer(), "Red?", "has no chat template"),
        (TOKENIZER, '[{"role": ', "is not a JSON list of messages"),
        (TOKENIZER, '[{"role": "user"}]', "needs role and content"),
    ],
)
def test_prompts_that_cannot_be_rendered_are_rejected(tokenizer, prompt, problem):
    with pytest.raises(TokenizerError, match=problem):
        encode_prompt(tokenizer, prompt, chat=True)


def test_an_answer_ends_with_the_special_token_of_the_template():
    extended = ExtendedTokenizer(ByteTokenizer(), ["/>", "</>", "<user>"])
    assert end_of_answer(TokenizerWithTemplate(extended, TEMPLATE)) == extended.token_id("</>")
    assert end_of_answer(TokenizerWithTemplate(extended, f"{TEMPLATE}\n")) == extended.token_id("</>")
    assert end_of_answer(TOKENIZER) is None
