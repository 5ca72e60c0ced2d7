"""A small GPT in several layouts, its norms, and those of its gathered tensors; imported by the ranks."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from mb_host.megatron.layers import host_block_spec
from mb_metrics import GradientNorms, calc_params_l2_norm, report_l2_norm_grad

VOCABULARY, SEQUENCE = 96, 32


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel layout of the model on four ranks."""

    tp: int = 1
    pp: int = 1
    vp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    experts: int | None = None
    tied: bool = False
    distributed_optimizer: bool = False
    bf16: bool = False


class TrainingModel:
    """Model, optimizer and gradients of one step, on one rank."""

    def __init__(self, layout: Layout, *, distributed_optimizer: bool) -> None:
        self.layout = layout
        tensor_parallel.model_parallel_cuda_manual_seed(7, force_reset_rng=True)
        torch.manual_seed(7)
        self.config = _config(layout)
        self.chunks = [self._chunk(stage) for stage in range(layout.vp or 1)]
        settings = DistributedDataParallelConfig(
            use_distributed_optimizer=distributed_optimizer,
            overlap_grad_reduce=distributed_optimizer,
            overlap_param_gather=distributed_optimizer,
            bucket_size=4000 if distributed_optimizer else None,
        )
        self.model = [
            DistributedDataParallel(self.config, settings, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(self.chunks)
        ]
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=1e-2,
                clip_grad=0.0,
                bf16=layout.bf16,
                params_dtype=self.config.params_dtype,
                use_distributed_optimizer=distributed_optimizer,
            ),
            self.model,
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        if distributed_optimizer:
            syncs = [model.no_sync for model in self.model]
            grads = [model.start_grad_sync for model in self.model]
            self.config.no_sync_func = syncs if layout.vp else syncs[0]
            self.config.grad_sync_func = grads if layout.vp else grads[0]

    def _chunk(self, number: int):
        stage = {"ignore_virtual": False, "vp_stage": number if self.layout.vp else None}
        chunk = GPTModel(
            config=self.config,
            transformer_layer_spec=host_block_spec(
                self.config,
                vp_stage=stage["vp_stage"],
                pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
            ),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            pre_process=parallel_state.is_pipeline_first_stage(**stage),
            post_process=parallel_state.is_pipeline_last_stage(**stage),
            share_embeddings_and_output_weights=self.layout.tied,
            position_embedding_type="rope",
            vp_stage=stage["vp_stage"],
        )
        return Float16Module(self.config, chunk) if self.layout.bf16 else chunk

    def backward(self) -> None:
        """Compute gradients of two microbatches and reduce them as in a step."""
        many = len(self.model) > 1
        batches = [self._batches() for _ in self.model]
        get_forward_backward_func()(
            forward_step_func=_forward,
            data_iterator=batches if many else batches[0],
            model=self.model if many else self.model[0],
            num_microbatches=2,
            seq_length=SEQUENCE,
            micro_batch_size=2,
            forward_only=False,
        )

    def _batches(self):
        for number in range(2):
            seed = 100 * number + parallel_state.get_data_parallel_rank()
            tokens = torch.randint(
                0, VOCABULARY, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed)
            )
            batch = {
                "tokens": tokens[:, :-1].contiguous(),
                "labels": tokens[:, 1:].contiguous(),
                "position_ids": torch.arange(SEQUENCE).repeat(2, 1),
            }
            group = parallel_state.get_context_parallel_group()
            yield get_batch_on_this_cp_rank(batch, False, group) if group.size() > 1 else batch

    def gathered_norm(self, folder: Path, *, gradients: bool) -> float:
        """Return torch's norm of the complete model's tensors, gathered by Megatron's checkpoints."""
        if gradients:
            for model in self.model:
                for parameter in model.parameters():
                    parameter.data = parameter.main_grad
        metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
        state = {
            f"chunk{index}": chunk.sharded_state_dict(metadata=metadata)
            for index, chunk in enumerate(self.chunks)
        }
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save(state, str(folder))
        tensors = [tensor.double() for tensor in saved_tensors(folder)]
        return float(torch.nn.utils.get_total_norm(tensors))


def saved_tensors(folder: Path) -> list[torch.Tensor]:
    """Return the tensors of a checkpoint."""
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    return list(tensors.values())


def measure(layout: Layout, folder: str) -> dict[str, float]:
    """Return the norms of parameters and gradients, and their expected values."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
    )
    plain = TrainingModel(layout, distributed_optimizer=False)
    plain.backward()
    found = {"params wanted": plain.gathered_norm(Path(folder, "params"), gradients=False)}
    training = TrainingModel(layout, distributed_optimizer=True) if layout.distributed_optimizer else plain
    found["params"] = calc_params_l2_norm(training.model, training.config)
    found["params of weights"] = calc_params_l2_norm(training.model, force_create_fp32_copy=True)
    if layout.distributed_optimizer:
        training.backward()
    gradients = report_l2_norm_grad(training.model)
    found["gradients"] = gradients["l2_norm/grad/global"]
    found["by name"] = gradients
    found["by name, plain"] = report_l2_norm_grad(plain.model)
    whole = GradientNorms(training.model)(loss_scale=2.0)
    found["of all stages"] = {name: float(norm) for name, norm in whole.items()}
    found["optimizer"] = training.optimizer.step()[1]
    # with overlap_param_gather a rank has so far only updated its own shard of the weights
    found["updated"] = calc_params_l2_norm(training.model, force_create_fp32_copy=True)
    if layout.distributed_optimizer:
        plain.optimizer.step()
    found["updated wanted"] = plain.gathered_norm(Path(folder, "updated"), gradients=False)
    found["gradients wanted"] = plain.gathered_norm(Path(folder, "gradients"), gradients=True)
    return found


def _config(layout: Layout) -> TransformerConfig:
    dtype = torch.bfloat16 if layout.bf16 else torch.float32
    split_experts = layout.experts is not None and layout.tp > 1 and layout.etp != 1
    # Ranks that share an expert gather its tokens, and gloo requires the same number from each.
    even = (
        {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True} if split_experts else {}
    )
    return TransformerConfig(
        num_layers=4,
        hidden_size=32,
        ffn_hidden_size=48,
        num_attention_heads=4,
        num_query_groups=2,
        add_bias_linear=not split_experts,
        gated_linear_unit=layout.experts is None,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bf16=layout.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        sequence_parallel=layout.tp > 1,
        num_moe_experts=layout.experts,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        overlap_p2p_comm=layout.vp is not None,
        batch_p2p_comm=layout.vp is None,
        transformer_impl="local",
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        **even,
    )


def _forward(batches, model):
    batch = next(batches)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return losses, lambda output: (output.float().mean(), {})


def measure_layout(layout: dict, folder: str) -> dict[str, float]:
    """Compute the norms for a layout given by its fields."""
    return measure(Layout(**layout), folder)
