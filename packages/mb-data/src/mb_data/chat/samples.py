"""Conversations to samples: rendered by a chat template, tokenized, with a loss on the messages of the assistant.

The loss covers what the template marks with `{% generation %}`. Without marks it covers the difference of two
renderings: the conversation up to and including a message, and up to the prompt that begins this message.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mb_data.chat.encoding import chat_templates_of, encode_chat, final_special, special_names
from mb_data.chat.message_forms import readable_messages
from mb_data.chat.prompt_formats import turn_template
from mb_data.chat.rows import ASSISTANT, Conversation, parse_conversation
from mb_data.chat.template import ChatTemplates
from mb_data.errors import BadDocumentError, ChatTemplateError, TokenizerError
from mb_data.finetuning.options import FinetuningOptions
from mb_data.libraries import import_library
from mb_data.tokenizers.base import Tokenizer

logger = logging.getLogger(__name__)

Span = tuple[int, int]
_PER_TURN = "dataset.dataset_kwargs.sample_per_assistant_turn=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """Token ids of a sample, and a mask of those that the loss covers."""

    ids: list[int]
    loss_mask: list[bool]

    def first(self, count: int) -> "EncodedSample":
        """Return the sample of the first `count` ids."""
        return EncodedSample(ids=self.ids[:count], loss_mask=self.loss_mask[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEncoder:
    """Function that converts rows with conversations to samples. Pickled once for each worker process."""

    tokenizer: Tokenizer
    templates: ChatTemplates
    options: FinetuningOptions

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: FinetuningOptions) -> "ChatEncoder":
        """Return the encoder for a tokenizer with a chat template.

        Raises:
            TokenizerError: The tokenizer has no chat template, or cannot encode its special tokens.
            ChatTemplateError: The template cannot be parsed, or jinja2 is not installed.
        """
        if options.use_hf_tokenizer_chat_template:
            templates = chat_templates_of(tokenizer)
        else:
            templates = ChatTemplates(templates={"default": turn_template(options.special_tokens)})
        if not templates.templates:
            raise TokenizerError(
                "dataset.dataset_kwargs.chat: the tokenizer has no chat template, which renders the conversations. Set "
                "tokenizer.chat_template_path to a Jinja file, or tokenizer.tokenizer_model to a folder with one."
            )
        for template in templates.templates.values():
            compile_template(template)
        encode_chat(tokenizer, "")
        encoder = cls(tokenizer=tokenizer, templates=templates, options=options)
        if encoder._leaves_answers_open():
            logger.warning(
                "tokenizer.chat_template: the last answer of a conversation ends without a special token, so that the "
                "model does not learn where to end it. Let the template write one after it, such as the "
                "end-of-sequence token."
            )
        return encoder

    @property
    def description(self) -> list[Any]:
        """Everything in addition to tokenizer and options that the samples depend on."""
        return [dict(self.templates.templates), dict(self.templates.special_tokens)]

    def __call__(self, row: Mapping[str, Any], *, location: str) -> list[EncodedSample]:
        """Return the sample of a conversation, or one for each message of the assistant.

        Raises:
            BadDocumentError: The row is not a conversation, or the template rejects it.
        """
        if not self.options.use_hf_tokenizer_chat_template:
            _require_plain_turns(row, location=location)
        conversation = parse_conversation(row, location=location, tools=self.options.tools)
        try:
            conversation = self._readable(conversation)
            if self.options.sample_per_assistant_turn:
                return [self._turn(conversation, number) for number in conversation.answers]
            return [self._complete(conversation)]
        except ChatTemplateError as error:
            raise BadDocumentError(f"{location}: {error}") from error

    def _leaves_answers_open(self) -> bool:
        """Return True if the loss covers answers whose end the template does not write."""
        messages = [{"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "a"}]
        try:
            view = self._view(Conversation(messages=messages, tools=None, location=""))
        except ChatTemplateError:  # it requires other messages
            return False
        return (
            self.options.use_hf_tokenizer_chat_template
            and not view.renderer.has_marks
            and final_special(self.tokenizer, view.text) is None
        )

    def _complete(self, conversation: Conversation) -> EncodedSample:
        view = self._view(conversation)
        if view.renderer.has_marks or not self.options.answer_only_loss:
            return self._encode(view.text, view.marked)
        spans = [self._answer_span(view, number) for number in conversation.answers]
        return self._encode(view.text, spans)

    def _turn(self, conversation: Conversation, number: int) -> EncodedSample:
        view = self._view(conversation, count=number + 1)
        if view.renderer.has_marks or not self.options.answer_only_loss:
            previous = len(view.rendered(number).generated) if number else 0
            return self._encode(view.text, view.marked[previous:])
        return self._encode(view.text, [self._answer_span(view, number)])

    def _readable(self, conversation: Conversation) -> Conversation:
        """Return a conversation with its messages in the form that its template reads."""
        renderer, arguments = self._template_of(conversation)
        render = partial(renderer.render, tools=conversation.tools, arguments=arguments)
        return replace(conversation, messages=readable_messages(conversation.messages, render=render))

    def _template_of(self, conversation: Conversation) -> tuple[Any, Mapping[str, Any]]:
        """Return the compiled template of a conversation, and its further variables."""
        template = self.templates.select(has_tools=conversation.tools is not None)
        if template is None:
            raise ChatTemplateError(
                "there is no template named default, but the conversation has no tools. Set tokenizer.chat_template"
            )
        arguments = {**self.templates.special_tokens, **self.options.chat_template_kwargs}
        return compile_template(template), arguments

    def _view(self, conversation: Conversation, *, count: int | None = None) -> "_View":
        renderer, arguments = self._template_of(conversation)
        return _View(
            renderer=renderer,
            conversation=conversation,
            arguments=arguments,
            count=len(conversation.messages) if count is None else count,
        )

    def _answer_span(self, view: "_View", number: int) -> Span:
        """Return the part of the text that the message adds after the prompt that begins it."""
        prompt = view.rendered(number, add_generation_prompt=True).text
        through = view.text if number + 1 == view.count else view.rendered(number + 1).text
        if not view.text.startswith(through):
            raise ChatTemplateError(
                f"the chat template renders message {number} differently when messages follow, so that the complete "
                f"conversation does not contain what the assistant generated. Set {_PER_TURN}, or mark the trained "
                "text in the template with {% generation %}"
            )
        if not through.startswith(prompt):
            raise ChatTemplateError(
                f"the generation prompt of the chat template does not begin message {number} of the assistant, so that "
                "the trained text cannot be derived. Mark it in the template: {% generation %}"
                "{{ message['content'] }}{% endgeneration %}"
            )
        return len(prompt), self._end_of_turn(view.text, len(prompt), len(through))

    def _end_of_turn(self, text: str, start: int, end: int) -> int:
        """Return the end of an answer with the special token that ends it, without whitespace after that token.

        In some templates, such as GLM's, it is the first token of the next message.
        """
        answer = text[start:end]
        if final_special(self.tokenizer, answer) is not None:
            return start + len(answer.rstrip())
        following = [name for name in special_names(self.tokenizer) if text.startswith(name, end)]
        return end + max((len(name) for name in following), default=0)

    def _encode(self, text: str, spans: Sequence[Span]) -> EncodedSample:
        ids, offsets = encode_chat(self.tokenizer, text)
        if not self.options.answer_only_loss:
            return EncodedSample(ids=ids, loss_mask=[True] * len(ids))
        return EncodedSample(ids=ids, loss_mask=mask_of_spans(offsets, spans))


def mask_of_spans(offsets: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Return a mask of the tokens that contain a character of a span. Spans are in ascending order.

    Args:
        offsets: Start and end of each token in the text, in characters.
        spans: Start and end of each part of the text.
    """
    mask, position = [], 0
    for start, end in offsets:
        while position < len(spans) and spans[position][1] <= start:
            position += 1
        mask.append(position < len(spans) and end > start and spans[position][0] < end)
    return mask


@dataclass(slots=True, kw_only=True)
class _View:
    """The first `count` messages of a conversation under a template."""

    renderer: Any
    conversation: Conversation
    arguments: Mapping[str, Any]
    count: int
    text: str = field(init=False)
    marked: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        complete = self.rendered(self.count)
        self.text, self.marked = complete.text, list(complete.generated)

    def rendered(self, count: int, *, add_generation_prompt: bool = False) -> Any:
        return self.renderer.render(
            self.conversation.messages[:count],
            tools=self.conversation.tools,
            arguments=self.arguments,
            add_generation_prompt=add_generation_prompt,
        )


def compile_template(template: str) -> Any:
    """Return the compiled template. Imports jinja2 on demand."""
    rendering = import_library(
        "mb_data.chat.rendering",
        where="chat",
        purpose="renders chat templates",
        extra="chat",
        library="jinja2",
        error=ChatTemplateError,
    )
    return rendering.compile_chat_template(template)


def _require_plain_turns(row: Mapping[str, Any], *, location: str) -> None:
    """Reject a row with labels or with other masked senders, which turns without a chat template do not have."""
    if row.get("type") is not None or row.get("mask", "User") not in ("User", "user", "human"):
        raise BadDocumentError(
            f"{location}: has type={row.get('type')!r} and mask={row.get('mask')!r}; turns have no labels, and the "
            "loss covers the assistant. Remove both keys, or render the labels into the texts."
        )
