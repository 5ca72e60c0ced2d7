"""A recipe in the style of Megatron-Bridge, moved by its imports: `megatron.bridge` became `mb_trainer.bridge`.

`mb check recipe.py:pretrain_config`, `mb pretrain recipe.py:pretrain_config`, or `python recipe.py`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from mb_trainer.bridge.models.gpt_provider import GPTModelProvider
from mb_trainer.bridge.training.callbacks import Callback
from mb_trainer.bridge.training.comm_overlap import CommOverlapConfig
from mb_trainer.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_trainer.bridge.training.gpt_step import forward_step
from mb_trainer.bridge.training.pretrain import pretrain
from mb_trainer.bridge.training.state import GlobalState


@dataclass
class SmallLlamaProvider(GPTModelProvider):
    """Model in the style of a provider: its defaults are fields of a class."""

    normalization: str = "RMSNorm"
    activation_func: Any = F.silu
    gated_linear_unit: bool = True
    position_embedding_type: str = "rope"
    add_bias_linear: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0


def pretrain_config() -> ConfigContainer:
    """Return the configuration of a small model on mock data."""
    config = ConfigContainer(
        model=SmallLlamaProvider(
            num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, seq_length=64
        ),
        train=TrainingConfig(train_iters=6, global_batch_size=8, micro_batch_size=4),
        validation=ValidationConfig(eval_interval=6, eval_iters=1),
        optimizer=OptimizerConfig(optimizer="adam", lr=1e-3, min_lr=1e-4, weight_decay=0.1, clip_grad=1.0),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=2),
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=MockGPTDatasetConfig(
            seq_length=64,
            num_workers=0,
            dataloader_type="single",
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=255),
        checkpoint=CheckpointConfig(save_interval=3),
        rng=RNGConfig(seed=1234),
        comm_overlap=CommOverlapConfig(tp_comm_overlap=False),
    )
    config.model.pipeline_dtype = torch.float32
    return config


class LossPrinter(Callback):
    """Callback in the style of Megatron-Bridge."""

    def on_train_step_end(self, context: Any) -> None:
        """Print the loss of a step."""
        losses = {name: float(loss) for name, loss in context.result.losses.items()}
        print(f"step {context.state.train_state.step}: {losses}")


def scaled_forward_step(
    state: GlobalState, data_iterator: Any, model: Any, return_schedule_plan: bool = False
) -> Any:
    """Run the standard forward step; the global state is injected, because the first parameter is one."""
    assert state.train_state.step <= state.cfg.train.train_iters
    return forward_step(state, data_iterator, model, return_schedule_plan)


if __name__ == "__main__":
    pretrain(config=pretrain_config(), forward_step_func=scaled_forward_step, callbacks=[LossPrinter()])
