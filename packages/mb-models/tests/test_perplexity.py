"""Perplexity of a set, in total and by the length of the documents."""

import math

import pytest

torch = pytest.importorskip("torch")

from mb_models.evaluation.perplexity import measure_perplexity  # noqa: E402

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])


def forward_step(iterator, model):
    batch = next(iterator)
    losses = model(batch["losses"])

    def loss_function(output):
        loss, tokens = (output * batch["loss_mask"]).sum(), batch["loss_mask"].sum()
        return loss, tokens, {"lm loss": torch.stack([loss, tokens])}

    return losses, loss_function


def measured(lengths, *, number=2):
    batches = iter([{"losses": LOSSES, "loss_mask": MASK}] * number)
    return measure_perplexity(
        forward_step,
        torch.nn.Identity(),
        batches,
        microbatches=number,
        name="news",
        lengths=lengths,
        bounds=(10,),
    )


def test_the_loss_is_the_mean_over_the_tokens_that_count():
    found = measured(lambda _number: None)
    assert (found.name, found.tokens, found.loss, found.buckets) == ("news", 10, 16 / 5, ())
    assert found.as_dict()["perplexity"] == pytest.approx(math.exp(3.2))


def test_buckets_divide_the_tokens_by_the_length_of_their_document():
    found = measured(lambda number: [5, 5, 20] if number % 2 == 0 else [20, 20, 20])
    assert [(each.name, each.tokens, each.loss) for each in found.buckets] == [
        ("0 to 9 tokens", 4, 1.5),
        ("10 tokens and more", 6, 26 / 6),
    ]
    assert sum(each.loss_sum for each in found.buckets) == found.loss_sum


def test_a_set_without_tokens_has_no_loss():
    found = measured(lambda _number: None, number=0)
    assert math.isnan(found.loss)
    assert found.as_dict() == {"name": "news", "tokens": 0, "loss": None, "perplexity": None}


def test_a_sequence_that_is_shorter_than_the_others_keeps_the_buckets():
    found = measured(lambda number: [5, 5, 20] if number % 2 == 0 else [5])
    assert [(each.name, each.tokens) for each in found.buckets] == [
        ("0 to 9 tokens", 8),
        ("10 tokens and more", 2),
    ]
