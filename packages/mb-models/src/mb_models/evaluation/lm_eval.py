"""Model interface of lm-evaluation-harness over a causal model. Requires lm_eval (extra `lm-eval`)."""

import atexit
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Protocol

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from mb_models.evaluation.generation import all_logits
from mb_models.evaluation.sampling_options import SamplingOptionError, SamplingOptions
from mb_models.evaluation.scoring import BatchedModel, TextRequest

MAX_GENERATED_TOKENS = 256
"""Tokens that a task without `max_gen_toks` generates, as for the harness' other models."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the same option in task files; the first that is set counts, as for the harness' other models."""


class EvaluationTokenizer(Protocol):
    """Tokenizer of the model; `mb_data.chat.prompt.EvaluationTokenizer` matches."""

    @property
    def vocab_size(self) -> int:
        """Number of entries."""

    @property
    def eod(self) -> int:
        """End-of-document token, which ends a generated text."""

    @property
    def bos(self) -> int | None:
        """Token with which each text begins."""

    @property
    def fingerprint(self) -> str:
        """Identifies the tokenizer in a cache of requests."""

    @property
    def chat_template(self) -> str | None:
        """Template for conversations."""

    @property
    def end_of_answer(self) -> int | None:
        """Special token with which the template ends an answer; None: other text."""

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation."""


class TrainedLM(TemplateLM):  # type: ignore[misc]
    """Language model for `lm_eval.simple_evaluate(model=...)` and `lm_eval.evaluate`.

    Requests are sorted by length, and equal inputs are computed once. Every rank is given all requests, so that their
    examples do not depend on the number of ranks. Data-parallel replicas share the computation; all have the results.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        replicas: process group of the data-parallel replicas; None: there is one.
        stop_tokens: tokens that end a generated text, in addition to the end-of-document token.
        info: added to `config` of the results.
        progress: called with the kind of requests, and the number of those that have been computed since the last call.
    """

    def __init__(
        self,
        model: BatchedModel,
        tokenizer: EvaluationTokenizer,
        *,
        replicas: torch.distributed.ProcessGroup | None = None,
        stop_tokens: Iterable[int] = (),
        info: Mapping[str, Any] | None = None,
        progress: Callable[[str, int], object] = lambda _kind, _count: None,
    ) -> None:
        super().__init__()
        self._model, self._texts = replace(model, replicas=replicas or model.replicas), tokenizer
        self._device = model.device
        self._ends = {tokenizer.eod, *stop_tokens}
        self._info, self._progress = dict(info or {}), progress

    @classmethod
    def of(
        cls,
        chunk: Any,
        tokenizer: EvaluationTokenizer,
        *,
        context_length: int,
        batch_size: int | str = 16,
        **options: Any,
    ) -> "TrainedLM":
        """Return the model of a chunk of Megatron Core that is complete, but for tensor parallelism.

        Args:
            chunk: the model, in evaluation mode.
            tokenizer: its tokenizer.
            context_length: tokens of a sequence at most.
            batch_size: sequences of a batch at most.
            **options: `stop_tokens`, `info` and `progress`.
        """
        model = BatchedModel.of(
            all_logits(chunk),
            vocab_size=tokenizer.vocab_size,
            context_length=context_length,
            batch_size=int(batch_size),
        )
        return cls(model, tokenizer, replicas=chunk.pg_collection.dp, **options)

    @property
    def eot_token_id(self) -> int:
        """End-of-document token."""
        return self._texts.eod

    @property
    def prefix_token_id(self) -> int:
        """Token before a text without context."""
        return self._texts.eod if self._texts.bos is None else self._texts.bos

    @property
    def max_length(self) -> int:
        """Context length in tokens."""
        return self._model.context_length

    @property
    def batch_size(self) -> int:
        """Sequences of a batch at most."""
        return self._model.batch_size

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in caches of requests."""
        return self._texts.fingerprint

    def get_model_info(self) -> dict[str, Any]:
        """Return what the results name in `config`."""
        return self._info

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """Return the ids of a text, with the beginning-of-sequence token unless `add_special_tokens` is False."""
        return self._texts.encode(string, add_bos=add_special_tokens is not False)

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._texts.decode(tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template for conversations; None if it is not applied."""
        return self._texts.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation. From then on, texts also end where the template ends an answer."""
        if self._texts.end_of_answer is not None:
            self._ends.add(self._texts.end_of_answer)
        return self._texts.render(chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(self, requests: Sequence[Any], **_options: Any) -> list[tuple[float, bool]]:
        """Return log-likelihood of each continuation, and whether it is the most likely one.

        Raises:
            mb_models.evaluation.scoring.ScoreError: a continuation has no tokens, or more than the context length.
        """
        for request in requests:
            # lm_eval reads the first token of a continuation without context
            continuation = [0] if request.args[1] else []
            self._model.require_scorable([self.prefix_token_id], continuation, text=request.args[1])
        scores: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return scores

    def loglikelihood_rolling(self, requests: Sequence[Any], **_options: Any) -> list[float]:
        """Return the log-likelihood of each text, in windows of the context length."""
        windows, texts = [], []
        for number, request in enumerate(requests):
            (text,) = request.args
            rolling = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            text_windows = [make_disjoint_window(window) for window in rolling]
            windows += text_windows
            texts += [number] * len(text_windows)
        sums = [0.0] * len(requests)
        scores = self._model.score(windows, progress=lambda count: self._progress("windows of texts", count))
        for number, score in zip(texts, scores, strict=True):
            sums[number] += score.log_likelihood
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: Sequence[Any], **_options: Any) -> list[str]:
        """Return the generated text of each request, up to the first of its stop texts.

        A sampled text depends on its document and its number among the repeated ones, not on the number of replicas.

        Raises:
            SamplingOptionError: a task sets an unknown option, or a wrong value.
            mb_models.evaluation.generation.PromptError: a prompt is empty.
        """
        prepared: list[tuple[TextRequest, list[str]]] = []
        copies: Counter[int] = Counter()
        for request in requests:
            stream = (request.doc_id or 0) * (request.repeats or 1) + copies[id(request)]
            copies[id(request)] += 1  # lm_eval repeats the object
            prepared.append(self._text_request(*request.args, stream=stream))
        continuations = self._model.continue_texts(
            [request for request, _ in prepared], progress=lambda count: self._progress("texts", count)
        )
        texts = []
        for request, (_, stops), tokens in zip(requests, prepared, continuations, strict=True):
            text = self.tok_decode(tokens)
            texts.append(text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)])
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_options: Any
    ) -> list[tuple[float, bool]]:
        for (_, continuation), context_ids, ids in requests:
            self._model.require_scorable(context_ids, ids, text=continuation)
        scores = self._model.score(
            [(context, continuation) for _, context, continuation in requests],
            progress=lambda count: self._progress("continuations", count),
        )
        for (text, *_), score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", text, tuple(score))
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def _text_request(
        self, context: str, settings: Mapping[str, Any], *, stream: int
    ) -> tuple[TextRequest, list[str]]:
        options, stops = read_generation_options(settings)
        prompt_length = self.max_length - options.max_new_tokens
        prompt = self.tok_encode(context)
        ends = self._ends | self._special_tokens(stops)

        def is_complete(tokens: list[int]) -> bool:
            if tokens[-1] in ends or not stops:
                return tokens[-1] in ends
            text = self.tok_decode(tokens)
            return any(stop in text for stop in stops)

        request = TextRequest(
            prompt=prompt[-prompt_length:] if prompt_length > 0 else prompt,
            options=options,
            is_complete=is_complete,
            stream=stream,
        )
        return request, stops

    def _special_tokens(self, stops: Sequence[str]) -> set[int]:
        """Return the stop texts that are one special token, such as `<|im_end|>`: the generated text has none."""
        ids = [self.tok_encode(stop, add_special_tokens=False) for stop in stops]
        return {each[0] for each in ids if len(each) == 1 and not self.tok_decode(each)}


def read_generation_options(settings: Mapping[str, Any]) -> tuple[SamplingOptions, list[str]]:
    """Return the options in `generation_kwargs` of a task, and the texts that end a generated text.

    None, as null in a task file, is the default.

    Raises:
        SamplingOptionError: an option is unknown, or its value is wrong.
    """
    supported = {"until", "do_sample", "temperature", "top_k", "top_p", *_LENGTHS}
    if unknown := sorted(settings.keys() - supported):
        raise SamplingOptionError(
            f"generation_kwargs: has unknown options ({', '.join(unknown)}). Known are {', '.join(sorted(supported))}."
        )
    settings = {name: value for name, value in settings.items() if value is not None}
    until = settings.get("until") or []
    temperature = _number(settings, "temperature", 0.0)
    if settings.get("do_sample") and temperature == 0.0:
        raise SamplingOptionError(
            "generation_kwargs.do_sample: needs a temperature above 0 (do_sample=true, temperature=0.0). Set "
            "temperature, or do_sample=false."
        )
    options = SamplingOptions(
        max_new_tokens=_whole_number(
            settings, next(filter(settings.__contains__, _LENGTHS), _LENGTHS[0]), MAX_GENERATED_TOKENS
        ),
        temperature=temperature if settings.get("do_sample", temperature > 0) else 0.0,
        top_k=_whole_number(settings, "top_k", 0),
        top_p=_number(settings, "top_p", 1.0),
    )
    return options, [stop for stop in ([until] if isinstance(until, str) else until) if stop]


def _number(settings: Mapping[str, Any], name: str, default: float) -> float:
    try:
        number = float(settings.get(name, default))
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise SamplingOptionError(
            f"generation_kwargs.{name}: {settings[name]!r} is not a number. Correct it in the task."
        )
    return number


def _whole_number(settings: Mapping[str, Any], name: str, default: int) -> int:
    number = _number(settings, name, default)
    if not number.is_integer():
        raise SamplingOptionError(
            f"generation_kwargs.{name}: {number} is not a whole number. Correct it in the task."
        )
    return int(number)


def register_model(name: str, open_model: Callable[..., AbstractContextManager[TrainedLM]]) -> None:
    """Register a model with lm_eval, for `simple_evaluate(model=name, model_args=...)` in this process.

    Args:
        name: name of the model.
        open_model: called with the arguments in `model_args`; the model remains open until the process ends.
    """
    model_registry.register(name, target=type("OpenedLM", (_OpenedLM,), {"open": staticmethod(open_model)}))


class _OpenedLM(TrainedLM):
    """Registered model: lm_eval calls its two constructors by arguments."""

    open: Callable[..., AbstractContextManager[TrainedLM]]

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> TrainedLM:
        further = {key: value for key, value in (additional_config or {}).items() if value is not None}
        return _OPEN.enter_context(cls.open(**arg_dict, **further))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> TrainedLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)


_OPEN = ExitStack()
"""Opened models, which lm_eval never closes."""
atexit.register(_OPEN.close)
