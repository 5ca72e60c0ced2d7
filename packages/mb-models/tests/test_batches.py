from types import SimpleNamespace

import pytest
import torch

from mb_models import Batch, BatchError, GPTForwardStep, get_batch

CPU = torch.device("cpu")


def sample(**extra):
    tokens = torch.arange(16).reshape(2, 8)
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.ones(2, 8),
        "position_ids": torch.arange(8).expand(2, 8),
        **extra,
    }


def kept(batch: Batch) -> set[str]:
    return {name for name in Batch.__dataclass_fields__ if getattr(batch, name) is not None}


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (True, True, {"tokens_BS", "position_ids_BS", "labels_BS", "loss_mask_BS"}),
        (True, False, {"tokens_BS", "position_ids_BS"}),
        (False, True, {"labels_BS", "loss_mask_BS"}),
        (False, False, set()),
    ],
)
def test_a_stage_keeps_what_it_needs(first, last, names):
    assert kept(get_batch(iter([sample()]), first_stage=first, last_stage=last, device=CPU)) == names


def test_the_tensors_are_those_of_the_iterator():
    batch = get_batch(iter([sample()]), first_stage=True, last_stage=True, device=CPU)
    assert torch.equal(batch.labels_BS, batch.tokens_BS + 1)


def test_an_intermediate_stage_does_not_advance_the_iterator():
    batches = iter([sample()])
    get_batch(batches, first_stage=False, last_stage=False, device=CPU)
    assert len(list(batches)) == 1


def test_an_attention_mask_is_kept_if_one_stage_is_the_complete_model():
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    batch = get_batch(iter([sample(attention_mask=mask)]), first_stage=True, last_stage=True, device=CPU)
    assert torch.equal(batch.attention_mask_B1SS, mask)


@pytest.mark.parametrize(
    ("data", "last", "message"),
    [
        (None, True, "no data iterator"),
        ({"tokens": torch.zeros(1, 8)}, True, "lacks position_ids, labels, loss_mask"),
        (sample(cu_seqlens=torch.tensor([0, 8])), True, "holds packed sequences"),
        (sample(attention_mask=torch.ones(2, 1, 8, 8)), False, "holds an attention_mask"),
        (sample(loss_mask=torch.full((2, 8), 0.5)), True, "loss_mask has weights between 0.5 and 0.5"),
        (
            sample(labels=torch.full((2, 8), -100)),
            True,
            "labels has 16 negative numbers where loss_mask is 1, because Megatron's loss ignores no label",
        ),
    ],
)
def test_unsupported_batches_are_rejected(data, last, message):
    batches = None if data is None else iter([data])
    with pytest.raises(BatchError, match=message):
        get_batch(batches, first_stage=True, last_stage=last, device=CPU)


def test_a_batch_error_is_a_value_error():
    assert issubclass(BatchError, ValueError)


def test_padding_is_read_where_it_is_and_on_every_stage_if_required():
    padding = torch.zeros(2, 8, dtype=torch.bool)
    read = {"device": CPU, "first_stage": False}
    assert kept(get_batch(iter([sample(padding_mask=padding)]), last_stage=True, **read)) == {
        "labels_BS",
        "loss_mask_BS",
        "padding_mask_BS",
    }
    data = iter([sample(padding_mask=padding)])
    assert kept(get_batch(data, last_stage=False, padded=True, **read)) == {"padding_mask_BS"}
    with pytest.raises(BatchError, match="lacks padding_mask"):
        get_batch(iter([sample()]), last_stage=True, padded=True, **read)


def test_padding_that_intermediate_stages_would_not_read_is_rejected():
    groups = SimpleNamespace(cp=None, pp=SimpleNamespace(size=lambda: 3))
    chunk = torch.nn.Linear(1, 1)
    chunk.pre_process, chunk.post_process, chunk.mtp_process, chunk.vp_stage = True, False, False, None
    chunk.pg_collection, chunk.config = groups, SimpleNamespace(num_moe_experts=4)
    data = iter([sample(padding_mask=torch.zeros(2, 8, dtype=torch.bool))])
    with pytest.raises(BatchError, match=r"holds a padding_mask.*GPTForwardStep\(padded=True\)"):
        GPTForwardStep()(data, chunk)
