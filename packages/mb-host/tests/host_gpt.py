"""Small GPT, trained by Megatron Core on the CPU of each rank by the parity tests.

The data is the same in every layout: the batch of a step depends only on the step, and each rank reads its part.
"""

import time

import torch
import torch.distributed as dist
from host_layouts import Curve, Layout
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from mb_host.megatron.layers import host_block_spec

VOCABULARY, SEQUENCE, GLOBAL_BATCH, MICRO_BATCH = 128, 64, 8, 2


class Trainer:
    """Model, optimizer and step of one rank."""

    def __init__(self, layout: Layout, *, seed: int = 1234) -> None:
        self.layout = layout
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            virtual_pipeline_model_parallel_size=layout.vp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
        self.config = self._build_config()
        self.chunks = [self._build_chunk(vp_stage) for vp_stage in range(layout.vp or 1)]
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=layout.distributed_optimizer,
            overlap_grad_reduce=layout.overlap,
            overlap_param_gather=layout.overlap,
            bucket_size=20000 if layout.overlap else None,
        )
        self.model = [
            DistributedDataParallel(self.config, ddp_config, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(self.chunks)
        ]
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=3e-3,
                weight_decay=0.01,
                clip_grad=1.0,
                use_distributed_optimizer=layout.distributed_optimizer,
                overlap_param_gather=layout.overlap,
            ),
            self.model,
        )
        self._connect()

    def _build_config(self) -> TransformerConfig:
        return model_config(self.layout)

    def _build_chunk(self, vp_stage: int) -> torch.nn.Module:
        stage = {"ignore_virtual": False, "vp_stage": vp_stage if self.layout.vp else None}
        pp_rank = parallel_state.get_pipeline_model_parallel_rank()
        chunk = GPTModel(
            config=self.config,
            transformer_layer_spec=host_block_spec(self.config, vp_stage=stage["vp_stage"], pp_rank=pp_rank),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            pre_process=parallel_state.is_pipeline_first_stage(**stage),
            post_process=parallel_state.is_pipeline_last_stage(**stage),
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            vp_stage=stage["vp_stage"],
        )
        return chunk.cuda(torch.cuda.current_device())

    def _connect(self) -> None:
        """Pass to the schedule how gradients are finalized and overlapped."""
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        if self.layout.overlap:
            model = self.model[0]
            self.config.no_sync_func = model.no_sync
            self.config.grad_sync_func = model.start_grad_sync

    def step(self, number: int) -> float | None:
        """Train one step; return the loss per token over the global batch, on the last pipeline stage."""
        for model in self.model:
            model.zero_grad_buffer()
        self.optimizer.zero_grad()
        many = len(self.model) > 1
        batches = [self._micro_batches(number) for _ in self.model]
        ranks = parallel_state.get_data_parallel_world_size()
        reports = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=batches if many else batches[0],
            model=self.model if many else self.model[0],
            num_microbatches=GLOBAL_BATCH // (MICRO_BATCH * ranks),
            seq_length=SEQUENCE,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        self.optimizer.step()
        if not reports:
            return None
        total = torch.stack([report["loss"] for report in reports]).sum(0)
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return (total[0] / total[1]).item()

    def _micro_batches(self, number: int):
        ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        rows = global_batch(number)[rank * GLOBAL_BATCH // ranks : (rank + 1) * GLOBAL_BATCH // ranks]
        for tokens in rows.split(MICRO_BATCH):
            batch = {
                "tokens": tokens[:, :-1],
                "labels": tokens[:, 1:],
                "position_ids": torch.arange(SEQUENCE).expand(MICRO_BATCH, -1),
            }
            if self.layout.cp > 1:
                batch["cu_seqlens"] = None
                group = parallel_state.get_context_parallel_group()
                batch = get_batch_on_this_cp_rank(batch, False, group)
            yield batch

    def _forward(self, batches, model):
        batch = {name: None if value is None else value.cuda() for name, value in next(batches).items()}
        losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        return losses, sum_loss

    def _state(self, optimizer_format: str | None, *, is_loading: bool) -> dict:
        chunks = {f"model{i}" if i else "model": chunk for i, chunk in enumerate(self.chunks)}
        state = {name: chunk.sharded_state_dict() for name, chunk in chunks.items()}
        if optimizer_format:
            group = parallel_state.get_data_parallel_group(with_context_parallel=True)
            state["optimizer"] = self.optimizer.sharded_state_dict(
                state,
                is_loading=is_loading,
                metadata={"distrib_optim_sharding_type": optimizer_format, "dp_cp_group": group},
            )
        return state

    def save(self, folder: str, *, optimizer_format: str | None = None) -> None:
        """Write the weights, and the optimizer's state in that format, into an empty folder. Collective."""
        dist_checkpointing.save(self._state(optimizer_format, is_loading=False), folder)

    def load(self, folder: str, *, optimizer_format: str | None = None) -> None:
        """Read them, whatever the layout they were written in. Collective."""
        state = dist_checkpointing.load(self._state(optimizer_format, is_loading=True), folder)
        for index, chunk in enumerate(self.chunks):
            chunk.load_state_dict(state[f"model{index}" if index else "model"])
        if optimizer_format:
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            self.optimizer.reload_model_params()


def model_config(layout: Layout) -> TransformerConfig:
    """Return a GPT with rotary positions, RMSNorm, SwiGLU and grouped queries: 4 layers of 64."""
    batched = layout.vp is None if layout.batched_sends is None else layout.batched_sends
    return TransformerConfig(
        num_layers=4,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=4,
        num_query_groups=2,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        sequence_parallel=layout.sequence_parallel,
        num_moe_experts=layout.experts,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=not batched,
        batch_p2p_comm=batched,
        calculate_per_token_loss=True,
        transformer_impl="local",
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
    )


def global_batch(number: int) -> torch.Tensor:
    """Return the tokens of one step, [GLOBAL_BATCH, SEQUENCE + 1]: nine of ten follow from the one before."""
    generator = torch.Generator().manual_seed(number)
    successor = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(VOCABULARY, (GLOBAL_BATCH, SEQUENCE + 1), generator=generator)
    learnable = torch.rand(tokens.shape, generator=generator) < 0.9
    for place in range(1, SEQUENCE + 1):
        tokens[:, place] = torch.where(learnable[:, place], successor[tokens[:, place - 1]], tokens[:, place])
    return tokens


def sum_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return the summed loss, the number of tokens, and both for the report."""
    total, count = losses.float().sum(), torch.tensor(losses.numel(), dtype=torch.int)
    return total, count, {"loss": torch.stack([total.detach(), count.float()])}


def write_start(folder: str, layout: Layout, trainer_of: type[Trainer] = Trainer) -> None:
    """Save the initial weights."""
    trainer_of(layout).save(folder)


def train(folder: str, layout: Layout, steps: int, trainer_of: type[Trainer] = Trainer) -> Curve:
    """Train from the weights in `folder`."""
    trainer = trainer_of(layout)
    trainer.load(folder)
    losses, milliseconds = [], []
    for number in range(steps):
        start = time.perf_counter()
        losses.append(trainer.step(number))
        milliseconds.append((time.perf_counter() - start) * 1e3)
    return Curve(
        losses=[loss for loss in losses if loss is not None],
        step_ms=sorted(milliseconds)[len(milliseconds) // 2],
    )
