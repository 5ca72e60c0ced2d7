"""Benchmark of a step of `gpt_tiny` on the CPU next to a GPT of the same shape in plain PyTorch.

The plain GPT has the layers, sizes, initial scale, batch, optimizer, gradient clipping and learning rate of the recipe:
RMSNorm, rotary positions from a table, grouped queries in torch's attention, SwiGLU, tied embeddings, torch's AdamW.
A step of it runs in the same process after each step of the trainer, whose own step is everything between the end of
two steps: data, metrics, checks and callbacks included. The plain GPT also runs under `torch.compile`.

Median and minimum of the processor time of a step, and of the elapsed time, in milliseconds. On a shared machine the
ratios of the processor times are meaningful.

    python meta/benchmarks/bench_step.py [--steps 40] [--threads 1] [--compile]
"""

import argparse
import statistics
import tempfile
import time

import torch

import mb_guard
import mb_host

torch_compile = torch.compile  # which the next line replaces
mb_host.install()
mb_host.quiet()
mb_guard.install(quiet=True)

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mb_trainer  # noqa: E402
from mb_trainer.recipes import gpt_tiny  # noqa: E402


class Block(nn.Module):
    """Attention and gated feed-forward layer behind RMSNorms."""

    def __init__(self, shape):
        super().__init__()
        hidden, self.heads, self.groups = (
            shape.hidden_size,
            shape.num_attention_heads,
            shape.num_query_groups,
        )
        self.channels = hidden // self.heads
        self.norm_1 = nn.RMSNorm(hidden, eps=shape.layernorm_epsilon)
        self.norm_2 = nn.RMSNorm(hidden, eps=shape.layernorm_epsilon)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.channels, bias=False)
        self.projection = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * shape.ffn_hidden_size, bias=False)
        self.down = nn.Linear(shape.ffn_hidden_size, hidden, bias=False)

    def forward(self, hidden, cos, sin):
        """Return the residual stream after this layer."""
        batch, length, width = hidden.shape
        parts = self.qkv(self.norm_1(hidden)).view(batch, length, -1, self.channels).transpose(1, 2)
        query, key, value = parts.split([self.heads, self.groups, self.groups], dim=1)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, inner = self.up(self.norm_2(hidden)).chunk(2, dim=-1)
        return hidden + self.down(functional.silu(gate) * inner)


def rotate(values, cos, sin):
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-second, first), dim=-1) * sin


class PlainGpt(nn.Module):
    """GPT of a model section whose output layer is the embedding."""

    def __init__(self, shape, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.layernorm_epsilon)
        self.output = nn.Linear(shape.hidden_size, vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        channels = shape.hidden_size // shape.num_attention_heads
        rates = 1.0 / shape.rotary_base ** (torch.arange(0, channels, 2) / channels)
        angles = torch.outer(torch.arange(shape.seq_length), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, labels):
        """Return the mean loss."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.cos, self.sin)
        logits = self.output(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class PlainTraining:
    """Training of the plain GPT with the optimizer of the recipe, on random tokens."""

    def __init__(self, config, vocab_size, *, compiled):
        torch.manual_seed(1234)
        self.model = PlainGpt(config.model, vocab_size)
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.call = torch_compile(self.model) if compiled else self.model
        self.shape = config.train.micro_batch_size, config.model.seq_length + 1
        self.stream = torch.randint(vocab_size, (1 << 20,))

    def step(self):
        """Make one step, and return the loss as the trainer logs it."""
        batch, length = self.shape
        starts = torch.randint(len(self.stream) - length, (batch,)).tolist()
        rows = torch.stack([self.stream[start : start + length] for start in starts])
        loss = self.call(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class InTurn:
    """Callback that times each step of the trainer, and makes a timed step of every plain training after it."""

    def __init__(self, config, names, *, warmup):
        self.config, self.names, self.left = config, names, warmup
        self.plain, self.marks = {}, None
        self.taken = {name: [] for name in ("trainer", *names)}

    def on_train_step_end(self, context):
        """Record the step that ended, then the plain ones."""
        self._record("trainer")
        if not self.plain:
            (embedding,) = (
                parameter
                for name, parameter in context.model[0].named_parameters()
                if name.endswith("word_embeddings.weight")
            )
            vocab_size = embedding.shape[0]
            self.plain = {
                name: PlainTraining(self.config, vocab_size, compiled="compile" in name)
                for name in self.names
            }
        with torch.random.fork_rng():
            for name, training in self.plain.items():
                self._start()
                training.step()
                self._record(name)
        self.left -= 1
        self._start()

    def _start(self):
        self.marks = time.process_time(), time.perf_counter()

    def _record(self, name):
        if self.marks is not None and self.left <= 0:
            now = time.process_time(), time.perf_counter()
            self.taken[name].append([1e3 * (end - start) for start, end in zip(self.marks, now, strict=True)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="also the plain GPT under torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = gpt_tiny()
    config.train.train_iters = options.steps + options.warmup
    config.validation.eval_interval, config.checkpoint.save_interval = None, None
    config.scheduler.lr_warmup_iters = 2
    names = ["plain PyTorch", *(["plain, torch.compile"] if options.compile else [])]
    in_turn = InTurn(config, names, warmup=options.warmup)
    with tempfile.TemporaryDirectory() as folder:
        mb_trainer.pretrain(config, callbacks=[in_turn], out=f"{folder}/run")
    print(f"{'':22}{'processor: median':>18}{'minimum':>9}{'ratio':>7}{'elapsed: median':>17}{'ratio':>7}")
    base = [statistics.median(column) for column in zip(*in_turn.taken["plain PyTorch"], strict=True)]
    for name, taken in in_turn.taken.items():
        processor, elapsed = zip(*taken, strict=True)
        middle = [statistics.median(processor), statistics.median(elapsed)]
        print(
            f"{name:22}{middle[0]:>18.1f}{min(processor):>9.1f}{middle[0] / base[0]:>7.2f}"
            f"{middle[1]:>17.1f}{middle[1] / base[1]:>7.2f}"
        )


if __name__ == "__main__":
    main()
