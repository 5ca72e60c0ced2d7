"""Random models under random layouts have the numbers of one process, and continue the checkpoints of each other.

The layouts have random settings that must not change a number, too.
Seeded; MB_LAYOUTS=200 draws more models, MB_SEED=N others.
"""

import os
import random

import pytest
from random_models import CP, EP, ETP, PP, STARTS, TP, VP, checked, configured, draw, world_of
from runs import mb, metrics

from mb_trainer.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTModelConfig,
    LoggerConfig,
    MambaModelConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)

LAYOUTS, FIRST = int(os.environ.get("MB_LAYOUTS", "0")), int(os.environ.get("MB_SEED", "0"))
SEEDS = range(FIRST, FIRST + LAYOUTS) if LAYOUTS else (3, 13)
"""By default both have experts on several ranks, one with the distributed optimizer, the other without."""
MOST_RANKS = 4
STEPS, CUT = 4, 3
OF_THE_LAYOUT = (
    *(TP, PP, VP, CP, EP, ETP, "sequence_parallel", "cp_comm_type", "overlap_p2p_comm", "batch_p2p_comm"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("pipeline_model_parallel_layout", "microbatch_group_size_per_vp_stage"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
OTHER_NUMBERS = (
    *("moe_input_jitter_eps", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
    *("moe_token_drop_policy", "moe_router_force_load_balancing", "moe_router_force_biased"),
    "moe_router_load_balancing_type",  # sinkhorn balances the tokens of each rank
    *("fp16", "bf16", "params_dtype", "pipeline_dtype", "autocast_dtype", "unpadded_vocab_size"),
)
"""Fields by which numbers depend on the ranks, or are rounded."""

NEUTRAL = (
    ("dataset.num_workers=1", "dataset.persistent_workers=false"),
    ("rerun_state_machine.rerun_mode=report_determinism_stats",),
    ("ddp.overlap_grad_reduce=true", "ddp.bucket_size=3000"),
    ("model.cross_entropy_loss_fusion=true",),
    ("checkpoint.async_save=true",),
    ("checkpoint.fully_parallel_save=false", "checkpoint.fully_parallel_load=false"),
    ("train.check_weight_hash_across_dp_replicas_interval=1", "train.empty_unused_memory_level=2"),
    ("logger.tensor_norms_steps=[2]", "logger.log_l2_norm_grad_to_tensorboard=true"),
    ("dist.use_tp_pp_dp_mapping=true",),
)
"""Settings by which no number of a run may change; each row is one choice."""


def drawn(numbers):
    """Draw a model and a layout that `check` accepts; return its family, all fields, those of one rank, the ranks."""
    while True:
        name, values = draw(numbers)
        values = {key: value for key, value in values.items() if key not in OTHER_NUMBERS}
        values |= {"hidden_dropout": 0.0, "attention_dropout": 0.0, "vocab_size": 64}
        alone = {key: value for key, value in values.items() if key not in OF_THE_LAYOUT}
        if pattern := alone.get("hybrid_layer_pattern"):
            alone["hybrid_layer_pattern"] = pattern.replace("|", "")
        ranks = world_of(values) * numbers.choice([1, 1, 2])
        accepted = STARTS[name][0] in (GPTModelConfig, MambaModelConfig) and 2 <= ranks <= MOST_RANKS
        if accepted and not any(
            checked(configured(name, part), world=world)[0] for part, world in ((values, ranks), (alone, 1))
        ):
            return name, values, alone, ranks


def write_configurations(folder, numbers):
    """Write the same run for one rank and for a layout; return both files, the layout's ranks and a description."""
    name, values, alone, ranks = drawn(numbers)
    distributed, clip, masked = numbers.random() < 0.5, numbers.choice([1.0, 0.05]), numbers.random() < 0.5
    files = []
    for part, fields in (("alone", alone), ("layout", values)):
        model = STARTS[name][0](**fields)
        config = ConfigContainer(
            train=TrainingConfig(train_iters=STEPS, global_batch_size=8, micro_batch_size=1),
            validation=ValidationConfig(eval_interval=2, eval_iters=2),
            model=model,
            optimizer=OptimizerConfig(
                lr=1e-2, min_lr=1e-3, clip_grad=clip, use_distributed_optimizer=distributed
            ),
            scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=1, lr_decay_iters=2 * STEPS),
            ddp=DistributedDataParallelConfig(
                use_distributed_optimizer=distributed, grad_reduce_in_fp32=True
            ),
            dataset=MockGPTDatasetConfig(
                seq_length=model.seq_length,
                split="80,10,10",
                num_workers=0,
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=masked,
            ),
            tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=60),
            logger=LoggerConfig(log_interval=1, tensorboard_dir=None, log_params_norm=True),
            checkpoint=CheckpointConfig(save_interval=CUT, dist_ckpt_optim_fully_reshardable=distributed),
        )
        files.append(folder / f"{part}.yaml")
        config.to_yaml(str(files[-1]))
    return *files, ranks, f"{name} {values} distributed={distributed} clip={clip} masked={masked}"


def numbers_of(file, out, *words, ranks=1):
    """Run, and return losses and norms by step and name."""
    processes = [f"--nproc={ranks}"] if ranks > 1 else []
    save = f"checkpoint.save={out / 'checkpoints'}"
    done = mb("pretrain", str(file), f"--out={out}", *processes, save, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        (row["step"], name): pytest.approx(value, rel=2e-4)
        for row in metrics(out)
        for name, value in row.items()
        if "loss" in name or name in ("grad-norm", "params-norm")
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_layout_has_the_numbers_of_one_process_and_continues_its_checkpoints(seed, tmp_path):
    numbers = random.Random(seed)
    alone, layout, ranks, described = write_configurations(tmp_path, numbers)
    neutral = [word for row in numbers.sample(NEUTRAL, 4) for word in row]
    described += f" {' '.join(neutral)}"
    numbers_of(alone, tmp_path / "weights", "train.train_iters=1", "checkpoint.save_interval=1")
    start = f"checkpoint.pretrained_checkpoint={tmp_path / 'weights' / 'checkpoints'}"
    whole = f"train.train_iters={STEPS}"
    one = numbers_of(alone, tmp_path / "one", start, whole)
    several = numbers_of(layout, tmp_path / "several", start, whole, *neutral, ranks=ranks)
    assert several == one, described
    last = {key: value for key, value in one.items() if key[0] > CUT}
    for source, file, number, settings in (("several", alone, 1, ()), ("one", layout, ranks, neutral)):
        load = f"checkpoint.load={tmp_path / source / 'checkpoints'}"
        out = tmp_path / f"after-{source}"
        words = (start, whole, load, f"checkpoint.ckpt_step={CUT}", *settings)
        assert numbers_of(file, out, *words, ranks=number) == last, f"after {source}: {described}"
