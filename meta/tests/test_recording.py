"""Steps in which the trainer reads attention logits."""

from types import SimpleNamespace

import mb_host

mb_host.install()

import pytest  # noqa: E402
import torch  # noqa: E402

from mb_trainer.train import Run  # noqa: E402


class Attention(torch.nn.Module):
    """Stub of an attention layer with a maximum logit of 9 that records whether it clips."""

    def __init__(self):
        super().__init__()
        self.core_attention, self.clipped = torch.nn.Linear(1, 1), False
        self.core_attention.current_max_attn_logits = torch.tensor([9.0])

    def clip_qk(self):
        self.clipped = True


@pytest.mark.parametrize(
    ("clip", "log", "answer"),
    [
        (False, False, None),
        (False, True, (9.0, False)),
        (True, False, (9.0, True)),
        (True, True, (9.0, True)),
    ],
)
def test_attention_logits_are_read_and_clipped_as_the_model_is_configured(clip, log, answer):
    model, layer = SimpleNamespace(qk_clip=clip, log_max_attention_logit=log), Attention()
    config = SimpleNamespace(model=model)
    run = SimpleNamespace(
        job=SimpleNamespace(config=config), training_model=SimpleNamespace(chunks=[layer], groups=None)
    )
    logits = Run.attention_logits(run)
    assert (None if logits is None else (logits(successful=True).item(), layer.clipped)) == answer
