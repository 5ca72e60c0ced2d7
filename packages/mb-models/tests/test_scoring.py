"""Log-likelihoods and continuations in batches: equal to one sequence at a time."""

import pytest
import torch

from mb_models.evaluation.generation import PromptError
from mb_models.evaluation.sampling_options import SamplingOptionError, SamplingOptions, sample_tokens
from mb_models.evaluation.scoring import BatchedModel, ScoreError, TextRequest

TABLE = torch.randn(12, 12, generator=torch.Generator().manual_seed(1))
"""Logits of the next token by the sum of all previous tokens; two of its columns are padding."""


class BySum:
    """Causal model over ten tokens; records the shape of each batch."""

    def __init__(self):
        self.shapes = []

    def __call__(self, tokens):
        self.shapes.append(tuple(tokens.shape))
        return TABLE[tokens.cumsum(-1) % 12]


def model(**options):
    return BatchedModel(logits=BySum(), vocab_size=10, **{"context_length": 6, "batch_size": 3} | options)


def slow_score(context, continuation, *, length=6):
    tokens = [*context, *continuation][-length - 1 :]
    total, greedy = 0.0, True
    for number in range(len(tokens) - len(continuation), len(tokens)):
        row = TABLE[sum(tokens[:number]) % 12, :10]
        total += float(row.log_softmax(-1)[tokens[number]])
        greedy = greedy and int(row.argmax()) == tokens[number]
    return total, greedy


PAIRS = [([1], [2]), ([1], [3]), ([4, 5], [6, 7, 8]), ([9] * 8, [1, 2]), ([0], [int(TABLE[0, :10].argmax())])]


def test_scores_equal_those_of_one_sequence_at_a_time():
    found, expected = model().score(PAIRS), [slow_score(*pair) for pair in PAIRS]
    assert [score.is_greedy for score in found] == [greedy for _, greedy in expected]
    assert [score.log_likelihood for score in found] == pytest.approx([total for total, _ in expected])
    assert found[-1].is_greedy


def test_batches_are_sorted_by_length_and_equal_inputs_share_a_row():
    evaluated, counts = model(batch_size=2), []
    evaluated.score(PAIRS, progress=counts.append)
    assert evaluated.logits.shapes == [(2, 6), (2, 1)]
    assert sum(counts) == len(PAIRS)


@pytest.mark.parametrize(
    ("context", "continuation", "problem"),
    [
        ([], [1], "context has no tokens"),
        ([1], [], "continuation has no tokens"),
        ([1], [1] * 7, "7 tokens, more than"),
    ],
)
def test_what_has_no_probability_is_rejected(context, continuation, problem):
    with pytest.raises(ScoreError, match=problem):
        model().require_scorable(context, continuation, text="x")


def greedy_text(prompt, number):
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(int(TABLE[sum(tokens[-6:]) % 12, :10].argmax()))
    return tokens[len(prompt) :]


def test_texts_of_a_batch_equal_those_that_are_generated_alone():
    lengths = {(1,): 4, (2, 3, 4): 9, (5, 5): 0, (7,): 1}
    requests = [
        TextRequest(prompt=prompt, options=SamplingOptions(max_new_tokens=number))
        for prompt, number in lengths.items()
    ]
    assert model().continue_texts(requests) == [greedy_text(*item) for item in lengths.items()]


def test_a_text_ends_when_it_is_complete_and_the_next_seed_samples_another():
    options = SamplingOptions(max_new_tokens=20, temperature=5.0)
    short = TextRequest(prompt=[1], options=options, is_complete=lambda tokens: len(tokens) == 3)
    first, second, again = (model().continue_texts([short, short], seed=seed) for seed in (1, 2, 1))
    assert [len(text) for text in first] == [3, 3]
    assert first == again
    assert first != second


@pytest.mark.parametrize("choice", [{"top_k": 1}, {"top_p": 1e-6}])
def test_one_candidate_is_the_greedy_choice(choice):
    options = SamplingOptions(max_new_tokens=5, temperature=3.0, **choice)
    assert model().continue_texts([TextRequest(prompt=[1], options=options)]) == [greedy_text([1], 5)]


def test_top_p_keeps_the_tokens_that_reach_it():
    options = SamplingOptions(max_new_tokens=1, temperature=1.0, top_p=0.5)
    row = TABLE[1, :10].softmax(-1).sort(descending=True)
    kept = set(row.indices[: int((row.values.cumsum(-1) < 0.5).sum()) + 1].tolist())
    request = TextRequest(prompt=[1], options=options)
    assert {model().continue_texts([request], seed=seed)[0][0] for seed in range(60)} == kept


def test_top_k_keeps_tokens_as_likely_as_the_last_as_transformers():
    transformers = pytest.importorskip("transformers")
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0, 3.0])
    for number in range(1, 8):
        kept = transformers.TopKLogitsWarper(number)(None, logits[None])[0].isfinite()
        options = SamplingOptions(max_new_tokens=1, temperature=4.0, top_k=number)
        random = torch.Generator().manual_seed(1)
        found = {sample_tokens(logits[None], [options], [random])[0] for _ in range(200)}
        assert found == set(kept.nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    "options", [{"max_new_tokens": -1}, {"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(SamplingOptionError, match=rf"generation_kwargs.{next(iter(options))}: must be"):
        SamplingOptions(**{"max_new_tokens": 1} | options)


def test_an_empty_prompt_is_rejected():
    with pytest.raises(PromptError, match="has no tokens"):
        model().continue_texts([TextRequest(prompt=[], options=SamplingOptions(max_new_tokens=1))])
