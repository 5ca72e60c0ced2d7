"""A mixture of experts on two stages of two data-parallel ranks, experts on the first stage only."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_host.megatron.layers import host_block_spec
from mb_metrics import LoggerConfig, Metrics, Sink, expert_metrics, prediction_metrics, training_log
from mb_metrics.mcore import megatron_expert_tracker, megatron_prediction_tracker

VOCABULARY, SEQUENCE, MICROBATCHES = 96, 32, 2


def _forget_other_models() -> None:
    """Reset the trackers, which are process-wide and sized for the first model."""
    destroy_moe_metrics_tracker()
    MTPLossLoggingHelper.tracker.clear()


def measure():
    """Return the tracker metrics after one step, and Megatron's mean of the balancing loss."""
    _forget_other_models()
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    tensor_parallel.model_parallel_cuda_manual_seed(5, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        num_moe_experts=4,
        moe_layer_freq=[1, 1, 0, 0],
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
        moe_z_loss_coeff=1e-3,
        moe_token_dispatcher_type="alltoall",
        mtp_num_layers=1,
        add_bias_linear=False,
        pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
        transformer_impl="local",
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    spec = host_block_spec(config, pp_rank=parallel_state.get_pipeline_model_parallel_rank())
    last = parallel_state.is_pipeline_last_stage()
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if last else None,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=last,
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope",
    )
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), chunk)
    torch.manual_seed(dist.get_rank())
    get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=iter(range(MICROBATCHES)),
        model=model,
        num_microbatches=MICROBATCHES,
        seq_length=SEQUENCE,
        micro_batch_size=2,
        forward_only=False,
    )
    tracker = megatron_expert_tracker()
    stage = _mean_on_stage(tracker.metrics) if "load_balancing_loss" in tracker.metrics else 0.0
    found = expert_metrics(
        config,
        tracker,
        microbatches=MICROBATCHES,
        pp_group=parallel_state.get_pipeline_model_parallel_group(),
        dp_group=parallel_state.get_data_parallel_group(),
    )
    found |= prediction_metrics(megatron_prediction_tracker(), microbatches=MICROBATCHES)
    return {name: float(value) for name, value in found.items()} | {"by megatron on its own stage": stage}


def _mean_on_stage(metrics) -> float:
    """Return the mean over the two layers with experts, the microbatches and the two data-parallel ranks."""
    total = metrics["load_balancing_loss"].values.sum().clone()
    dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return float(total) / 2 / 2 / MICROBATCHES


def _forward(numbers, model):
    next(numbers)
    tokens = torch.randint(0, VOCABULARY, (2, SEQUENCE))
    losses = model(tokens, torch.arange(SEQUENCE).repeat(2, 1), None, labels=tokens)
    return losses, lambda output: (output.mean(), {})


class _Rows(Sink):
    """A sink that stores the metrics of each step."""

    def __init__(self):
        self.values = []

    def write_rows(self, rows):
        self.values += [dict(row.values) for row in rows]


def log_two_steps():
    """Return the rows that this rank writes: only the last rank, which has no trainable parameters and no experts."""
    _forget_other_models()
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    first_stage, writes = parallel_state.is_pipeline_first_stage(), dist.get_rank() == 3
    rows, totals, flag = _Rows(), {}, True
    metrics = Metrics([rows] if writes else [], log_interval=2)
    state = SimpleNamespace(
        train_state=SimpleNamespace(step=0, consumed_train_samples=0, skipped_train_samples=0),
        metrics=metrics,
    )
    config = SimpleNamespace(
        logger=LoggerConfig(log_interval=2),
        train=SimpleNamespace(global_batch_size=16, micro_batch_size=2),
        model={"num_layers": 1, "num_moe_experts": 2, "moe_aux_loss_coeff": 0.1},
    )
    for loss in (2.0, 4.0):
        if first_stage:
            for _ in range(4):  # microbatches
                megatron_expert_tracker().record(
                    "load_balancing_loss", torch.tensor(loss), layer_number=1, num_layers=1
                )
        state.train_state.step += 1
        flag = training_log(
            {} if first_stage else {"lm loss": torch.tensor(1.0)},
            totals,
            0.5 if first_stage else None,
            None,
            1.0,
            flag,
            0,
            None,
            None,
            None,
            config,
            state,
            [],
            [],
            ProcessGroupCollection.use_mpu_process_groups(),
            print_line=lambda line: None,
        )
    metrics.close()
    return rows.values
