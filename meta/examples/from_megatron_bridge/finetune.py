"""LoRA finetuning in the style of Megatron-Bridge: `megatron.bridge` became `mb_trainer.bridge` in the imports.

`python recipe.py` first, which trains the model in runs/recipe, then `python finetune.py`: adapters in runs/counting.
"""

import json
from pathlib import Path

from recipe import pretrain_config

from mb_trainer.bridge.peft.lora import LoRA
from mb_trainer.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from mb_trainer.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    FinetuningDatasetConfig,
    LoggerConfig,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_trainer.bridge.training.finetune import finetune
from mb_trainer.bridge.training.gpt_step import forward_step
from mb_trainer.bridge.training.mixed_precision import bf16_mixed

DATA = Path("counting")


def write_data(folder: Path) -> None:
    """Write questions with answers: the token ids after the first two, as text for the NullTokenizer."""
    folder.mkdir(exist_ok=True)
    for name, first in (("training", 0), ("validation", 100), ("test", 150)):
        starts = range(first, first + (100 if name == "training" else 50))
        lines = [{"input": f"{n} {n + 1}", "output": f"{n + 2} {n + 3} {n + 4}"} for n in starts]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


def finetune_config() -> ConfigContainer:
    """Return the configuration of LoRA on the model of recipe.py, in bfloat16."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        precision="bf16-mixed", lr_warmup_iters=1, max_lr=1e-2, min_lr=1e-3, adam_beta2=0.98
    )
    config = ConfigContainer(
        model=pretrain_config().model,
        train=TrainingConfig(train_iters=5, global_batch_size=16, micro_batch_size=8),
        validation=ValidationConfig(eval_interval=5, eval_iters=1),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        dataset=FinetuningDatasetConfig(seq_length=64, dataset_root=str(DATA), num_workers=0),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=255),
        checkpoint=CheckpointConfig(save_interval=5, pretrained_checkpoint="runs/recipe/checkpoints"),
        rng=RNGConfig(seed=5678),
        peft=LoRA(dim=8, alpha=16, target_modules=["linear_qkv", "linear_proj"]),
        mixed_precision=bf16_mixed(),
    )
    config.model.pipeline_dtype = None  # that of mixed_precision
    config.model.calculate_per_token_loss = True  # answers differ in length
    return config


if __name__ == "__main__":
    write_data(DATA)
    finetune(config=finetune_config(), forward_step_func=forward_step, name="counting")
