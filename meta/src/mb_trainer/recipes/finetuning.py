"""Recipes for supervised fine-tuning of gpt_tiny on questions and answers."""

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, SumsFinetuningConfig
from mb_trainer.recipes.lora import BASE, trained_gpt_tiny


@recipe(
    f"answers to sums by gpt_tiny, from {BASE}: mb pretrain gpt_tiny first, then mb finetune sft_tiny; "
    "under a minute on two CPU cores"
)
def sft_tiny() -> ConfigContainer:
    """Build supervised fine-tuning of gpt_tiny on synthetic additions: all parameters, or adapters with peft=lora.

    If dataset.dataset_root is set, the questions and answers are read from its files instead.
    """
    config = trained_gpt_tiny()
    config.dataset = SumsFinetuningConfig(seq_length=config.model.seq_length, num_workers=0)
    config.train.train_iters, config.train.global_batch_size, config.train.micro_batch_size = 200, 32, 32
    config.validation.eval_interval, config.validation.eval_iters = 50, 1
    config.optimizer.lr, config.optimizer.min_lr = 1e-3, 1e-4
    config.checkpoint.save_interval = 100
    return config
