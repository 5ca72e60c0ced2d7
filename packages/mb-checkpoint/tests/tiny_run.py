"""Tiny GPT on Megatron Core that trains on synthetic tokens.

Imports Megatron: for the processes of a rank pool, after `mb_host.install()`.
"""

import functools
import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import fused_adam
import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed.tensor import DTensor

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointLoadContext,
    CheckpointSaveContext,
    DefaultCheckpointManager,
)
from mb_host.megatron.layers import host_block_spec

VOCAB, SEQ, GLOBAL_BATCH, MICRO_BATCH = 64, 16, 8, 2


@dataclass
class Counters:
    """Train state."""

    step: int = 0
    consumed_train_samples: int = 0
    floating_point_operations_so_far: int = 0
    do_train: bool = True

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state_dict):
        vars(self).update(state_dict)


@dataclass
class Config:
    """Configuration that writes itself; `fails` simulates a full disk."""

    text: str = "train: {}\n"
    fails: bool = False
    model: SimpleNamespace = field(default_factory=SimpleNamespace)

    def to_yaml(self, path):
        if self.fails:
            raise OSError(28, "No space left on device", path)
        Path(path).write_text(self.text)


@dataclass
class State:
    train_state: Counters = field(default_factory=Counters)
    cfg: Config = field(default_factory=Config)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parameters that differ between the runs."""

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    ep: int = 1
    experts: int | None = None
    expert_layers: tuple[int, ...] | None = None
    """1 for each layer with experts, 0 for others; None: all have them."""
    layers: int = 2
    hidden: int = 32
    vocab: int = VOCAB
    """Rows of the embedding, with padding."""
    vocab_divisor: int | None = None
    """Setting make_vocab_size_divisible_by; None: the configuration does not have it."""
    optimizer: str = "adam"
    bf16: bool = False
    fp16: bool = False
    dist_opt: bool = False
    bucket_size: int | None = None
    fsdp: str | None = None
    overlap: bool = False
    seed: int = 1234
    plain: bool = False
    """Use an optimizer of torch itself."""
    unused: str | None = None
    """Name of a parameter whose gradient the optimizer of torch does not get."""
    adam: str = "torch"
    """Implementation of Adam that Megatron finds; see `fused_adam`."""


class TinyRun:
    """Model, optimizer, scheduler and counters of one rank. Needs a default process group."""

    def __init__(self, shape=Shape(), **section):
        self.shape = shape
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(
                shape.tp,
                shape.pp,
                virtual_pipeline_model_parallel_size=shape.vpp,
                expert_model_parallel_size=shape.ep,
                expert_tensor_parallel_size=1 if shape.experts else None,
            )
        random.seed(shape.seed)
        np.random.seed(shape.seed)
        torch.manual_seed(shape.seed)
        tensor_parallel.model_parallel_cuda_manual_seed(shape.seed, force_reset_rng=True)
        self.config = transformer_config(shape)
        self.model = [self._chunk(stage) for stage in range(shape.vpp or 1)]
        if shape.plain:
            self.optimizer = torch.optim.AdamW(p for chunk in self.model for p in chunk.parameters())
        else:
            fused_adam.use(shape.adam)
            self.optimizer = get_megatron_optimizer(optimizer_config(shape), self.model)
            self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.finalize_model_grads_func = finalize_model_grads
        if shape.overlap:
            self.config.no_sync_func = self.model[0].no_sync
        self.scheduler = OptimizerParamScheduler(
            self.optimizer, 0.0, 1e-2, 1e-4, 16, 400, "cosine", 0.01, 0.01, 400, "constant"
        )
        self.state = State()
        self.state.cfg.model.make_vocab_size_divisible_by = shape.vocab_divisor
        self.manager = DefaultCheckpointManager(CheckpointConfig(**section))

    def _chunk(self, stage):
        shape = self.shape
        virtual = {"ignore_virtual": False, "vp_stage": stage} if shape.vpp else {}
        pp_rank = parallel_state.get_pipeline_model_parallel_rank()
        model = GPTModel(
            config=self.config,
            transformer_layer_spec=host_block_spec(
                self.config, vp_stage=stage if shape.vpp else None, pp_rank=pp_rank
            ),
            vocab_size=shape.vocab,
            max_sequence_length=SEQ,
            pre_process=parallel_state.is_pipeline_first_stage(**virtual),
            post_process=parallel_state.is_pipeline_last_stage(**virtual),
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            vp_stage=stage if shape.vpp else None,
        )
        model = Float16Module(self.config, model) if shape.bf16 or shape.fp16 else model
        if shape.fsdp:
            return FullyShardedDataParallel(self.config, fsdp_config(shape), model)
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=shape.dist_opt,
            overlap_grad_reduce=shape.bucket_size is not None,
            bucket_size=shape.bucket_size,
        )
        return DistributedDataParallel(self.config, ddp, model, disable_bucketing=stage > 0)

    def train(self, steps):
        """Train and return the loss of each step as this rank sees it (0 on stages without a loss)."""
        return [self._step() for _ in range(steps)]

    def _step(self):
        for chunk in self.model:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        replicas = parallel_state.get_data_parallel_world_size()
        microbatches = GLOBAL_BATCH // MICRO_BATCH // replicas
        losses = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[batches(self.state.train_state.step, microbatches) for _ in self.model],
            model=self.model,
            num_microbatches=microbatches,
            seq_length=SEQ,
            micro_batch_size=MICRO_BATCH,
        )
        if self.shape.plain:
            for name, parameter in self.weights().items():
                if name != self.shape.unused:
                    parameter.grad = parameter.main_grad
        self.optimizer.step()
        self.scheduler.step(increment=GLOBAL_BATCH)
        counters = self.state.train_state
        counters.step += 1
        counters.consumed_train_samples += GLOBAL_BATCH
        counters.floating_point_operations_so_far += 2**61 + 12_345
        return sum(float(loss["lm loss"]) for loss in losses)

    def save(self, *, optimizer=True):
        """Save through the manager."""
        context = CheckpointSaveContext(
            state=self.state,
            model=self.model,
            optimizer=self.optimizer if optimizer else None,
            opt_param_scheduler=self.scheduler,
            num_floating_point_operations_so_far=self.state.train_state.floating_point_operations_so_far,
        )
        return self.manager.save(context)

    def load(self, **options):
        """Load through the manager and return its record."""
        context = CheckpointLoadContext(
            state=self.state,
            model=self.model,
            optimizer=self.optimizer,
            opt_param_scheduler=self.scheduler,
            **options,
        )
        self.manager.load(context)
        return self.manager.loaded

    def optimizer_tensors(self):
        """Return master weights and optimizer state by name."""
        return optimizer_tensors(self.optimizer)

    def weights(self):
        """Return this rank's weights by name, sharded where they are."""
        if self.shape.fsdp:
            self.model[0].stop_communication()
        return dict(pair for chunk in self.model for pair in chunk.named_parameters())

    def fingerprint(self):
        """Return short texts that are equal only if the state is equal to the last bit."""
        trackers = tensor_parallel.get_cuda_rng_tracker().get_states()
        return {
            "weights": digest(self.weights()),
            "optimizer": digest(optimizer_tensors(self.optimizer)),
            "rates": [(group["lr"], group["weight_decay"]) for group in self.optimizer.param_groups],
            "scale": "" if self.shape.plain else str(self.optimizer.get_loss_scale()),
            "counters": self.state.train_state.state_dict(),
            "python": random.random(),
            "numpy": float(np.random.rand()),
            "torch": digest({"state": torch.get_rng_state()}),
            "trackers": digest(trackers),
        }


def fsdp_config(shape):
    """Return how Megatron-FSDP shards."""
    return DistributedDataParallelConfig(
        use_megatron_fsdp=True,
        use_distributed_optimizer=True,
        data_parallel_sharding_strategy=shape.fsdp,
        overlap_grad_reduce=shape.overlap,
        overlap_param_gather=shape.overlap,
    )


def optimizer_tensors(optimizer):
    """Return the main parameters and every tensor of the optimizer state, by index and name."""
    found = {}
    for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
        chained = getattr(chained, "optimizer", chained)
        parameters = [each for group in chained.param_groups for each in group["params"]]
        for parameter in parameters:
            state = {"master": parameter, **chained.state[parameter]}
            place = len(found)
            found |= {f"{place} {name}": value for name, value in state.items() if torch.is_tensor(value)}
    return found


def digest(tensors):
    """Return a hash of named tensors."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor
        sha.update(name.encode() + tensor.detach().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def dtype_of(shape):
    """Return the dtype of the weights."""
    return torch.bfloat16 if shape.bf16 else torch.float16 if shape.fp16 else torch.float32


def transformer_config(shape):
    """Return Megatron's config of the tiny model, dropout on."""
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=2 * shape.hidden,
        num_attention_heads=4,
        num_query_groups=2,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        num_moe_experts=shape.experts,
        moe_layer_freq=list(shape.expert_layers) if shape.expert_layers else 1,
        moe_ffn_hidden_size=2 * shape.hidden if shape.experts else None,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=shape.ep,
        expert_tensor_parallel_size=1 if shape.experts else None,
        sequence_parallel=shape.tp > 1 and shape.experts is not None,
        tensor_model_parallel_size=shape.tp,
        pipeline_model_parallel_size=shape.pp,
        virtual_pipeline_model_parallel_size=shape.vpp,
        overlap_p2p_comm=shape.vpp is not None,
        batch_p2p_comm=shape.vpp is None,
        params_dtype=dtype_of(shape),
        pipeline_dtype=dtype_of(shape),
        bf16=shape.bf16,
        fp16=shape.fp16,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
    )


def optimizer_config(shape):
    """Return Megatron's config of an AdamW with clipping."""
    config = OptimizerConfig(
        optimizer=shape.optimizer,
        lr=1e-2,
        min_lr=1e-4,
        weight_decay=0.01,
        clip_grad=1.0,
        bf16=shape.bf16,
        fp16=shape.fp16,
        params_dtype=dtype_of(shape),
        use_distributed_optimizer=shape.dist_opt or shape.fsdp is not None,
        **fused_adam.options(shape.adam),
    )
    return fused_adam.configure(config, shape.adam)


def batches(step, microbatches):
    """Yield the microbatches of this replica at a step: tokens that count upwards from a random start."""
    first = parallel_state.get_data_parallel_rank() * microbatches
    for index in range(first, first + microbatches):
        generator = torch.Generator().manual_seed(1000 * step + index)
        start = torch.randint(VOCAB, (MICRO_BATCH, 1), generator=generator)
        yield (start + torch.arange(SEQ + 1)) % VOCAB


def forward_step(iterator, model):
    """Megatron's forward step: the mean loss of one microbatch."""
    sequence = next(iterator)
    tokens, labels = sequence[:, :-1], sequence[:, 1:].contiguous()
    positions = torch.arange(SEQ).expand_as(tokens)
    mask = torch.ones(1, 1, SEQ, SEQ).tril() < 0.5
    output = model(tokens, positions, mask, labels=labels)
    return output, functools.partial(mean_loss)


def mean_loss(losses):
    """Megatron's loss function."""
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach()}
