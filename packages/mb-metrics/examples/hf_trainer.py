"""Callback for the Hugging Face Trainer that records every optimizer step without synchronizing with the device.

`python hf_trainer.py runs/hf` trains a tiny model. The Trainer reads the loss at its `logging_steps`; this callback
reads the losses of the microbatches from the output of the model, as tensors, and adds them up on the device.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from mb_metrics import ConsoleSink, JsonlSink, Metrics


class MetricsCallback(TrainerCallback):
    """Callback that records losses, learning rate, samples and tokens of each step, and the losses of evaluations.

    Args:
        metrics: Give it sinks on one rank only.
        world_size: Data-parallel ranks; samples and tokens are counted over all of them.
    """

    def __init__(self, metrics: Metrics, *, world_size: int = 1) -> None:
        self._metrics = metrics
        self._world_size = world_size
        self._losses: list[torch.Tensor] = []
        self._samples = self._tokens = 0
        self._microbatches = 1
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Register a hook on the model."""
        self._hook = model.register_forward_hook(self._on_forward, with_kwargs=True)
        self._microbatches = args.gradient_accumulation_steps

    def on_step_end(
        self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **others: Any
    ) -> None:
        """Record an optimizer step."""
        values = {"loss": torch.stack(self._losses).sum(), "learning-rate": lr_scheduler.get_last_lr()[0]}
        samples, tokens = self._samples * self._world_size, self._tokens * self._world_size
        self._metrics.record(state.global_step, values, samples=samples, tokens=tokens)
        self._losses, self._samples, self._tokens = [], 0, 0

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        """Record an evaluation."""
        self._metrics.evaluation(state.global_step, {"loss": metrics["eval_loss"]})

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Flush the rows up to this checkpoint to disk, so that a resumed job continues from them."""
        self._metrics.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Remove the hook and close the sinks."""
        self._hook.remove()
        self._metrics.close()

    def _on_forward(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:
        if model.training:
            # With the token count of the step, the model divides by it; otherwise by the tokens of the microbatch.
            share = 1.0 if kwargs.get("num_items_in_batch") is not None else 1.0 / self._microbatches
            self._losses.append(output.loss.detach() * share)
            self._samples += kwargs["input_ids"].shape[0]
            self._tokens += kwargs["input_ids"].numel()


def train(folder: Path) -> None:
    """Train a Llama of two layers on random tokens."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **shape))
    texts = [{"input_ids": line, "labels": line} for line in torch.randint(64, (64, 16))]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=6,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    sinks = [ConsoleSink(), JsonlSink(folder / "metrics.jsonl")]
    callback = MetricsCallback(Metrics(sinks, log_interval=4, total_steps=arguments.max_steps))
    Trainer(
        model=model, args=arguments, train_dataset=texts, eval_dataset=texts[:8], callbacks=[callback]
    ).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
