"""Options of the forward step that the data of a run requires."""

from types import SimpleNamespace

import pytest

from mb_trainer.run.data import batch_form


@pytest.mark.parametrize(
    ("packed", "padded", "experts", "form"),
    [
        (False, True, None, {}),
        (False, True, 4, {"padded": True}),
        (True, True, 4, {"packed": True, "padded": True}),
        (False, False, 4, {}),
    ],
)
def test_padding_is_read_for_experts(packed, padded, experts, form):
    dataset = SimpleNamespace(is_packed=packed, is_padded=padded)
    assert (
        batch_form(SimpleNamespace(dataset=dataset, model=SimpleNamespace(num_moe_experts=experts))) == form
    )
