"""Megatron-Bridge's own `pretrain` on a machine without a GPU, for an environment with megatron-bridge 0.3.1.

    python megatron_bridge_pretrain.py '{"save": "checkpoints", "corpus": "corpus", "iters": 9}'

Its wheel requires Transformer Engine and an older Megatron Core. Here it runs on Megatron Core 0.19.2 with stand-ins
for the modules of Transformer Engine, of which no layer is used. The environment needs torch 2.11.0, megatron-core
0.19.2, nvidia-resiliency-ext 0.3.0, transformers<5, nvidia-modelopt, datasets, accelerate, omegaconf, hydra-core,
sentencepiece, tiktoken and, with --no-deps, megatron-bridge 0.3.1. mb-host is read from the repository.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from argparse import Namespace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "mb-host" / "src"))
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
    os.environ.setdefault(name, value)

import mb_guard  # noqa: E402
import mb_host  # noqa: E402

mb_host.install(force=True)  # before megatron is imported
mb_guard.install(quiet=True)

import torch  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402

GPU_PACKAGES = (
    "transformer_engine",
    "transformer_engine_torch",
    "mamba_ssm",
    "causal_conv1d",
    "fla",
    "flash_attn",
)
FURTHER = ("qwen_vl_utils", "timm", "open_clip", "wandb", "mlflow")


class AnyName(type):
    """Class whose attributes are classes, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName(name, (), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of empty packages."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in (*GPU_PACKAGES, *FURTHER):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "2.10.0"
        module.__getattr__ = partial(getattr, AnyName(spec.name, (), {}))
        return module

    def exec_module(self, module):
        pass


for name in [each for each in sys.modules if each.split(".")[0] in GPU_PACKAGES]:
    del sys.modules[name]
for name in ("opt.plugins", "quantization", "distill", "export"):  # they check Transformer Engine's classes
    importlib.import_module(f"modelopt.torch.{name}")
sys.meta_path.insert(0, StandIns())
tokenizer_module = types.ModuleType(
    "megatron.core.datasets.megatron_tokenizer"
)  # gone since Megatron Core 0.17
tokenizer_module.MegatronTokenizer = tokenizer_module.MegatronLegacyTokenizer = object
sys.modules[tokenizer_module.__name__] = tokenizer_module

import megatron.bridge.training.initialize as initialize  # noqa: E402
import megatron.bridge.training.setup as setup  # noqa: E402
from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402
from megatron.bridge.training import config as sections  # noqa: E402
from megatron.bridge.training.pretrain import pretrain  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer  # noqa: E402

ModelType.encoder_and_decoder = "encoder_and_decoder"  # gone since Megatron Core 0.17
NUMBERS = Namespace(tokenizer_type="NullTokenizer", vocab_size=64, tokenizer_model=None, pad_vocab_size=False)
NUMBERS.tokenizer_metadata, NUMBERS.rank = None, 0
initialize.compile_helpers = lambda: None  # the wheel contains them
setup.initialize_megatron = partial(setup.initialize_megatron, allow_no_cuda=True)
setup.build_tokenizer = lambda _section: build_tokenizer(NUMBERS)


def loss_function(mask, output):
    loss = torch.sum(output.view(-1).float() * mask.view(-1).float())
    tokens = mask.sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


def forward_step(state, data_iterator, model, return_schedule_plan=False):  # names that its trainer looks for
    batch = next(data_iterator)
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch.get("attention_mask"),
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(loss_function, batch["loss_mask"])


def model():
    fused = ("gradient_accumulation", "masked_softmax", "bias_activation", "bias_dropout")
    return GPTModelProvider(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=256,
        num_attention_heads=4,
        seq_length=32,
        vocab_size=64,
        make_vocab_size_divisible_by=8,
        should_pad_vocab=False,
        transformer_layer_spec=lambda _config: get_gpt_layer_local_spec(),
        position_embedding_type="learned_absolute",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        bf16=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        cross_entropy_loss_fusion=False,
        **{f"{name}_fusion": False for name in fused},
    )


def configuration(*, corpus, iters, cache, save=None, load=None, step=None):
    decay = {"start_weight_decay": 0.01, "end_weight_decay": 0.01, "weight_decay_incr_style": "constant"}
    masks = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    reduction = {"overlap_grad_reduce": False, "overlap_param_gather": False, "grad_reduce_in_fp32": True}
    return sections.ConfigContainer(
        model=model(),
        train=sections.TrainingConfig(
            train_iters=iters, micro_batch_size=2, global_batch_size=8, eval_iters=0, eval_interval=100
        ),
        optimizer=sections.OptimizerConfig(
            lr=1e-3, min_lr=1e-4, weight_decay=0.01, bf16=False, params_dtype=torch.float32
        ),
        scheduler=sections.SchedulerConfig(
            lr_decay_style="cosine", lr_warmup_iters=2, lr_decay_iters=9, **decay
        ),
        dataset=sections.GPTDatasetConfig(
            random_seed=1234,
            sequence_length=32,
            blend=([corpus], None),
            split="90,5,5",
            path_to_cache=cache,
            num_workers=0,
            create_attention_mask=False,
            dataloader_type="single",
            **masks,
        ),
        logger=sections.LoggerConfig(log_interval=1),
        tokenizer=sections.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=63),
        checkpoint=sections.CheckpointConfig(
            save=save, load=load, ckpt_step=step, save_interval=3, fully_parallel_save=False
        ),
        ddp=sections.DistributedDataParallelConfig(use_distributed_optimizer=False, **reduction),
        dist=sections.DistributedInitConfig(distributed_backend="gloo", use_gloo_process_groups=False),
        rng=sections.RNGConfig(seed=1234),
    )


if __name__ == "__main__":
    pretrain(configuration(**json.loads(sys.argv[1])), forward_step)
