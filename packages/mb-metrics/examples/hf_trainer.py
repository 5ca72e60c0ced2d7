"""Hugging Face Trainer with `TransformersCallback`: `python hf_trainer.py runs/hf` trains a tiny model.

The callback records the loss of every optimizer step as a tensor; the Trainer itself reads it at its `logging_steps`.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from mb_metrics import ConsoleSink, JsonlSink, Metrics, TransformersCallback


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
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    sinks = [ConsoleSink(), JsonlSink(folder / "metrics.jsonl")]
    with Metrics(sinks, log_interval=4, total_steps=arguments.max_steps) as metrics:
        Trainer(
            model=model,
            args=arguments,
            train_dataset=texts,
            eval_dataset=texts[:8],
            callbacks=[TransformersCallback(metrics)],
        ).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where metrics.jsonl is written")
    train(parser.parse_args().folder)
