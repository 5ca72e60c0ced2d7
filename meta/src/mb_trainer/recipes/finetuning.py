"""Recipes for supervised fine-tuning of gpt_tiny on questions and answers."""

from pathlib import Path

from mb_config.trainer_api import recipe, recipes_in
from mb_trainer.config import ConfigContainer, SumsFinetuningConfig, TokenizerConfig
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.lora import BASE


@recipe(
    f"answers to sums by gpt_tiny, from {BASE}: mb pretrain gpt_tiny first, then mb finetune sft_tiny; "
    "under a minute on two CPU cores"
)
def sft_tiny() -> ConfigContainer:
    """Build supervised fine-tuning of gpt_tiny on synthetic additions: all parameters, or adapters with peft=lora.

    If dataset.dataset_root is set, the questions and answers are read from its files instead.
    """
    config = gpt_tiny()
    tokenizer = Path(BASE, f"iter_{config.train.train_iters:07d}", "tokenizer.json")
    config.tokenizer = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model=tokenizer.as_posix()
    )
    config.model.vocab_size = 4096
    config.dataset = SumsFinetuningConfig(seq_length=config.model.seq_length, num_workers=0)
    config.checkpoint.pretrained_checkpoint = BASE
    config.train.train_iters, config.train.global_batch_size, config.train.micro_batch_size = 200, 32, 32
    config.validation.eval_interval, config.validation.eval_iters = 50, 1
    config.optimizer.lr, config.optimizer.min_lr = 1e-3, 1e-4
    config.checkpoint.save_interval = 100
    return config


RECIPES = recipes_in(globals())
