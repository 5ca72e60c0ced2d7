"""Pretraining and finetuning from Python: `python pretrain_and_finetune.py runs/python`.

A tiny GPT is trained with a callback, then adapters are trained on its weights. Each run is resumed if the script is
started again.
"""

import sys
from pathlib import Path

from mb_loop import Callback, CallbackContext
from mb_trainer import RECIPES, finetune, pretrain
from mb_trainer.config import TokenizerConfig
from mb_trainer.recipes.lora import lora_tiny


class LossList(Callback):
    """Callback that keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Append the loss. `float` waits for the device; a metric would not."""
        self.losses.append(float(context.result.losses["lm loss"]))


def main(folder: Path, steps: int) -> None:
    """Run both."""
    config = RECIPES["gpt_tiny"].build()
    config.train.train_iters, config.scheduler.lr_warmup_iters = steps, 2
    config.validation.eval_iters = 0
    losses = LossList()
    outcome = pretrain(config, callbacks=[losses], name="pretraining", out=folder / "pretraining")
    print(
        f"pretraining: {outcome.reason} at step {outcome.step}, losses {[round(each, 2) for each in losses.losses]}"
    )

    adapters = lora_tiny()
    adapters.checkpoint.pretrained_checkpoint = str(folder / "pretraining")
    adapters.tokenizer = TokenizerConfig()  # the one that was saved with these weights
    adapters.train.train_iters, adapters.scheduler.lr_warmup_iters = steps, 2
    adapters.validation.eval_iters = 0
    outcome = finetune(adapters, name="finetuning", out=folder / "finetuning")
    print(f"finetuning: {outcome.reason} at step {outcome.step}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), steps=int(sys.argv[2]) if len(sys.argv) > 2 else 20)
