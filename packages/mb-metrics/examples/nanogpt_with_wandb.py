"""Training loop in the style of nanoGPT that has its own W&B run: `python nanogpt_with_wandb.py runs/nanogpt`.

The lines between the marks are what the loop needs for mb-metrics: metrics.jsonl, a console line with step time and
tokens per second, and the same metrics in the W&B run of the loop, under `mb_metrics/`. Its own metrics are unchanged.
"""

import argparse
import time
from pathlib import Path

import torch
import wandb

# >>> mb-metrics
from mb_metrics import ConsoleSink, JsonlSink, Metrics, WandbSink

# <<< mb-metrics

MAX_ITERS, LOG_INTERVAL, EVAL_INTERVAL = 40, 5, 20
BATCH_SIZE, BLOCK_SIZE, VOCAB_SIZE, N_EMBD = 8, 16, 32, 16
LEARNING_RATE, MIN_LR = 1e-2, 1e-3


class TinyGPT(torch.nn.Module):
    """Token and position embeddings, one layer of causal attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(VOCAB_SIZE, N_EMBD)
        self.wpe = torch.nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.block = torch.nn.TransformerEncoderLayer(N_EMBD, 2, 4 * N_EMBD, dropout=0.0, batch_first=True)
        self.lm_head = torch.nn.Linear(N_EMBD, VOCAB_SIZE, bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        mask = torch.nn.Transformer.generate_square_subsequent_mask(BLOCK_SIZE)
        hidden = self.wte(idx) + self.wpe(torch.arange(BLOCK_SIZE))
        logits = self.lm_head(self.block(hidden, src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random blocks of a text and the tokens that follow them."""
    starts = torch.randint(len(data) - BLOCK_SIZE, (BATCH_SIZE,)).tolist()
    idx = torch.stack([data[at : at + BLOCK_SIZE] for at in starts])
    return idx, torch.stack([data[at + 1 : at + 1 + BLOCK_SIZE] for at in starts])


def train(folder: Path) -> None:
    """Train on a periodic text."""
    torch.manual_seed(1337)
    data = torch.arange(2000) % VOCAB_SIZE
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    folder.mkdir(parents=True, exist_ok=True)
    config = {"batch_size": BATCH_SIZE, "block_size": BLOCK_SIZE, "learning_rate": LEARNING_RATE}
    wandb.init(project="nanogpt", name="tiny", config=config, dir=folder, mode="offline")
    # >>> mb-metrics
    sinks = [ConsoleSink(), JsonlSink(folder / "metrics.jsonl"), WandbSink(run=wandb.run)]
    metrics = Metrics(sinks, log_interval=LOG_INTERVAL, total_steps=MAX_ITERS)
    # <<< mb-metrics
    t0 = time.time()
    for iter_num in range(1, MAX_ITERS + 1):
        lr = LEARNING_RATE - (LEARNING_RATE - MIN_LR) * iter_num / MAX_ITERS
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = model(*get_batch(data))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # >>> mb-metrics
        tokens = BATCH_SIZE * BLOCK_SIZE
        metrics.record(iter_num, {"train/loss": loss, "train/lr": lr}, samples=BATCH_SIZE, tokens=tokens)
        # <<< mb-metrics
        if iter_num % LOG_INTERVAL == 0:
            dt, t0 = time.time() - t0, time.time()
            wandb.log({"iter": iter_num, "train/loss": loss.item(), "lr": lr, "dt": dt})
        if iter_num % EVAL_INTERVAL == 0:
            with torch.no_grad():
                val_loss = model(*get_batch(data))
            wandb.log({"iter": iter_num, "val/loss": val_loss.item()})
    # >>> mb-metrics
    metrics.close()
    # <<< mb-metrics
    wandb.log({"iter": MAX_ITERS, "final": 1})
    wandb.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl and the W&B run are written")
    train(parser.parse_args().folder)
