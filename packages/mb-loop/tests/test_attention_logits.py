"""Attention logits, with fake layers that measure and clip as Megatron's do."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402


class Kernel(torch.nn.Module):
    """Kernel that stores the largest logit of each of two heads, as Megatron's does."""

    def __init__(self):
        super().__init__()
        self.current_max_attn_logits = None

    def forward(self, logits):
        largest = logits.detach().amax(dim=-1)
        before = self.current_max_attn_logits
        self.current_max_attn_logits = largest if before is None else torch.max(before, largest)
        return logits.sum()


class Attention(torch.nn.Module):
    """Layer with one weight per head; a head above `limit` is scaled down to it."""

    def __init__(self, weights, *, limit=100.0, kernel=None):
        super().__init__()
        self.weight, self.limit = torch.nn.Parameter(torch.tensor(weights)), limit
        self.core_attention = Kernel() if kernel is None else kernel

    def forward(self, inputs):
        return self.core_attention(self.weight[:, None] * inputs)

    def clip_qk(self):
        logits = self.core_attention.current_max_attn_logits
        self.weight.data.mul_(torch.clamp(self.limit / logits, max=1.0))
        self.core_attention.current_max_attn_logits = None


class Optimizer:
    """Optimizer that changes nothing and skips the steps in `bad`."""

    def __init__(self, bad=()):
        self.param_groups, self.bad, self.steps = [], bad, 0

    def zero_grad(self):
        pass

    def step(self):
        self.steps += 1
        return self.steps not in self.bad, 1.0, None


def forward_step(iterator, model):
    return model(next(iterator)), lambda output: (output, {"loss": output.detach()})


def train(layers, microbatches, *, bad=(), evaluate=None, clip=False, **settings):
    """Train on these inputs; return the largest logit of each step and the weights at the end."""
    model = torch.nn.Sequential(*layers)
    results, manager = [], mb_loop.CallbackManager()
    manager.register("on_train_step_end", lambda context: results.append(context.result))
    bridge_api.train(
        forward_step, [model], Optimizer(bad), None, iter(microbatches), evaluate,
        mb_loop.LoopState.of(**settings), callbacks=manager,
        attention_logits=mb_loop.AttentionLogits([model], clip=clip),
    )  # fmt: skip
    return [result.max_attention_logit.item() for result in results], [
        layer.weight.tolist() for layer in layers
    ]


def test_the_largest_logit_of_all_microbatches_and_layers_is_reported_without_clipping():
    layer = Attention([1.0, 2.0])
    found, weights = train(
        [layer], [torch.tensor([3.0, 4.0]), torch.tensor([60.0, 1.0]), torch.ones(2), torch.ones(2)],
        train_iters=2, global_batch_size=2,
    )  # fmt: skip
    assert (found, weights) == ([120.0, 2.0], [[1.0, 2.0]])


def test_heads_above_the_threshold_are_scaled_down_after_the_step():
    found, weights = train([Attention([1.0, 4.0])], [torch.tensor([50.0, 1.0])] * 2, train_iters=2, clip=True)
    assert (found, weights) == ([200.0, 100.0], [[1.0, 2.0]])


def test_nothing_is_scaled_after_a_skipped_step():
    inputs = [torch.tensor([float("inf"), 1.0]), torch.ones(2)]
    found, weights = train([Attention([1.0, 4.0])], inputs, train_iters=2, clip=True, bad=(1,))
    assert (found, weights) == ([float("inf"), 4.0], [[1.0, 4.0]])


def test_logits_of_an_evaluation_are_ignored():
    held_out = iter([torch.tensor([900.0, 1.0])] * 9)
    found, weights = train(
        [Attention([1.0, 2.0])], [torch.ones(2)] * 3, evaluate=held_out, clip=True,
        train_iters=3, eval_iters=1, eval_interval=1,
    )  # fmt: skip
    assert (found, weights) == ([2.0, 2.0, 2.0], [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("clip", "log", "answer"),
    [
        (False, False, None),
        (False, True, (9.0, False)),
        (True, False, (9.0, True)),
        (True, True, (9.0, True)),
    ],
)
def test_logits_are_read_and_clipped_as_the_model_is_configured(clip, log, answer):
    section, layer = SimpleNamespace(qk_clip=clip, log_max_attention_logit=log), Attention([9.0], limit=5.0)
    layer(torch.ones(1))
    logits = mb_loop.build_attention_logits(section, [layer])
    found = None if logits is None else (logits(successful=True).item(), layer.weight.item() < 9.0)
    assert found == answer


def test_a_model_that_measures_nothing_is_rejected():
    model = Attention([1.0], kernel=torch.nn.Identity())
    with pytest.raises(mb_loop.TrainSettingsError, match="none of 1 attention layers measures its logits"):
        mb_loop.AttentionLogits([model])
