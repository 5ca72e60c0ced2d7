"""Megatron-LM's `pretrain_gpt.py` and `pretrain_hybrid.py` without a GPU: its own `pretrain`, builders and datasets.

    python megatron_lm_pretrain.py --data-path corpus --train-iters 20 --save checkpoints ...

Only the forward step is written here; it computes what that of `pretrain_gpt.py` does.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

import torch  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: E402
    BlendedMegatronDatasetBuilder,
)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer  # noqa: E402
from megatron.training import initialize, pretrain  # noqa: E402
from megatron.training.argument_utils import (  # noqa: E402
    gpt_config_from_args,
    hybrid_config_from_args,
    pretrain_cfg_container_from_args,
)
from megatron.training.arguments import parse_and_validate_args  # noqa: E402
from megatron.training.global_vars import get_args  # noqa: E402
from megatron.training.utils import get_blend_and_blend_per_split  # noqa: E402

from mb_host.megatron.hybrid import host_hybrid_spec  # noqa: E402
from mb_host.megatron.megatron_lm import HOST_FLAGS, set_default_environment  # noqa: E402


def loss_function(
    mask: torch.Tensor, output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return sum and number of the losses of a microbatch."""
    loss = torch.sum(output.view(-1).float() * mask.view(-1).float())
    tokens = mask.sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


def forward_step(data: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """Run one microbatch."""
    batch = next(data)
    mask = batch.get("attention_mask")
    output = model(
        batch["tokens"], batch["position_ids"], mask, labels=batch["labels"], loss_mask=batch["loss_mask"]
    )
    return output, partial(loss_function, batch["loss_mask"])


def datasets(samples: list[int], vp_stage: int | None = None) -> Any:
    """Build the datasets for training, validation and test, on every rank."""
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        path_to_cache=args.data_cache_path,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, samples, lambda: True, config).build()


def model_config(args: Any) -> Any:
    """Return the configuration of a GPT model, or of a hybrid with layers that a CPU has."""
    if not args.hybrid_layer_pattern:
        return gpt_config_from_args(args)
    config = hybrid_config_from_args(args)
    config.hybrid_stack_spec = host_hybrid_spec(config.transformer)
    return config


def main() -> None:
    """Train, as `pretrain_gpt.py` does."""
    set_default_environment()
    datasets.is_distributed = True  # type: ignore[attr-defined]  # read by pretrain
    initialize._compile_dependencies = torch.distributed.barrier  # the wheel contains the dataset helpers
    unpatched = initialize.initialize_megatron
    __import__("megatron.training.training").training.training.initialize_megatron = partial(
        unpatched, allow_no_cuda=True
    )
    sys.argv[1:] = [*HOST_FLAGS, *sys.argv[1:]]
    args = parse_and_validate_args(args_defaults={})
    config = pretrain_cfg_container_from_args(args, model_config(args))
    pretrain(config, datasets, ModelType.encoder_or_decoder, forward_step)


if __name__ == "__main__":
    main()
