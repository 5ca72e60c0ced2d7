"""Invalid configurations, the rules that each violates, and the fix, as changes to a valid configuration."""

from types import SimpleNamespace

import pytest

from mb_config import RULES, MixedPrecisionConfig, check

TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
CP, VP = "model.context_parallel_size", "model.virtual_pipeline_model_parallel_size"
FSDP = "ddp.use_megatron_fsdp"
SHARDED = "optimizer.use_distributed_optimizer"
AWARE = "optimizer.use_precision_aware_optimizer"
ONE_FORMAT = {"optimizer.bf16": True, "model.bf16": True}
INTERLEAVED = {PP: 2, VP: 2}  # two replicas of two micro batches: one group of two
GROUP = "model.microbatch_group_size_per_vp_stage"

TABLE = [
    # length and batches
    ({"train.train_iters": None}, {"V056"}, {"train.train_iters": 20}),
    ({"train.train_samples": 1000}, {"V056", "V200"}, {"train.train_samples": None}),
    (
        {"train.train_iters": None, "train.train_samples": -8, "scheduler.lr_warmup_iters": 0},
        {"V057", "V204"},
        {"train.train_samples": 800},
    ),
    (
        {"train.train_iters": None, "train.train_samples": 4, "scheduler.lr_warmup_iters": 0},
        {"V247"},
        {"train.train_samples": 800},
    ),
    (
        {
            "train.train_iters": None,
            "train.train_samples": 4,
            "train.step_batch_size_schedule": "0:8 64:16",
            "scheduler.lr_warmup_iters": 0,
        },
        {"V247"},
        {"train.train_samples": 800},
    ),
    ({"train.train_iters": -1, "scheduler.lr_warmup_iters": 0}, {"TR01", "V204"}, {"train.train_iters": 1}),
    ({"train.train_iters": None, "train.num_epochs": -2.0}, {"V058"}, {"train.num_epochs": 2.0}),
    (
        {"train.train_iters": None, "train.num_epochs": 2.0, "train.rampup_batch_size": [8, 8, 64]},
        {"V058"},
        {"train.rampup_batch_size": None},
    ),
    ({"train.global_batch_size": None}, {"V118"}, {"train.global_batch_size": 8}),
    ({"train.global_batch_size": 12}, {"V242"}, {"train.decrease_batch_size_if_needed": True}),
    (
        {"train.global_batch_size": 4, "train.decrease_batch_size_if_needed": True},
        {"V242"},
        {"train.global_batch_size": 9},
    ),
    ({"train.eval_iters": 3}, {"V139d"}, {"train.eval_iters": None, "validation.eval_iters": 3}),
    # layout
    ({TP: 0}, {"V030"}, {TP: 1}),
    # context parallelism
    (
        {
            CP: 4,
            "model.hierarchical_context_parallel_sizes": [2, 2],
            "dist.use_decentralized_pg": True,
            "dist.use_gloo_process_groups": False,
        },
        {"V157"},
        {"dist.use_decentralized_pg": False},
    ),
    # schedule
    (
        {"scheduler.lr_warmup_fraction": 10.0, "scheduler.lr_warmup_iters": 0},
        {"S01"},
        {"scheduler.lr_warmup_fraction": 0.1},
    ),
    ({"scheduler.lr_warmup_samples": 10}, {"V062", "V201"}, {"scheduler.lr_warmup_samples": 0}),
    (
        {"scheduler.lr_wsd_decay_iters": 200, "scheduler.lr_decay_style": "WSD"},
        {"S05"},
        {"scheduler.lr_wsd_decay_iters": 20},
    ),
    ({"scheduler.lr_warmup_iters": 100}, {"V205"}, {"scheduler.lr_warmup_iters": 99}),
    ({"optimizer.lr": None}, {"V208"}, {"optimizer.lr": 1e-3}),
    (
        {"scheduler.weight_decay_incr_style": "cosine", "scheduler.end_weight_decay": 0.001},
        {"V208b"},
        {"scheduler.start_weight_decay": 0.0},
    ),
    # precision and optimizer
    (
        {"optimizer.optimizer": "soap", "facts.emerging_optimizers_installed": False},
        {"OP04"},
        {"facts.emerging_optimizers_installed": True},
    ),
    (
        {"optimizer.optimizer": "dist_muon", "optimizer.bf16": True, "facts.cpu": True},
        {"OP06"},
        {"facts.world_size": 1},
    ),
    (
        {
            "optimizer.optimizer_cpu_offload": True,
            "optimizer.use_distributed_optimizer": True,
            "ddp.use_distributed_optimizer": True,
            "facts.cpu": True,
        },
        {"OP07", "V051g"},
        {"optimizer.optimizer_cpu_offload": False},
    ),
    (
        {"mixed_precision": MixedPrecisionConfig(fp8="hybrid", fp4="e2m1")},
        {"V015"},
        {"mixed_precision": MixedPrecisionConfig(fp8="hybrid")},
    ),
    ({**ONE_FORMAT, "optimizer.fp16": True}, {"V146"}, {"optimizer.fp16": False}),
    ({"optimizer.main_grads_dtype": "bfloat16"}, {"V051"}, {"optimizer.main_grads_dtype": "float32"}),
    ({AWARE: True, "ddp.use_distributed_optimizer": False}, {"V051e"}, {AWARE: False}),
    (
        {AWARE: True, SHARDED: True, "model.bf16": True, "facts.resolved": True},
        {"V147", "V143"},
        {"optimizer.bf16": True, "ddp.use_distributed_optimizer": True},
    ),
    # wrapper and process groups
    ({"ddp.overlap_param_gather": True}, {"PG03", "PG04", "V144"}, {"ddp.overlap_param_gather": False}),
    (
        {"ddp.reuse_grad_buf_for_mxfp8_param_ag": True},
        {"V050"},
        {"ddp.fp8_param_gather": True, "dist.use_torch_fsdp2": True},
    ),
    ({"model.fp8": "hybrid", "model.fp8_param": True}, {"V122b"}, {"dist.use_megatron_fsdp": True}),
    (
        {"ddp.fp8_param_gather": True},
        {"V122b"},
        {"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
    ),
    (
        {
            "ddp.nccl_ub": True,
            "facts.torch_version": "2.9.1+cu130",
            "facts.env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"},
        },
        {"V050c"},
        {"facts.env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:False"}},
    ),
    (
        {"dist.flight_recorder_trace_buffer_size": 100},
        {"PG05"},
        {"dist.flight_recorder_dump_path": "/tmp/trace_"},
    ),
    (
        {"dist.distributed_timeout_seconds_after_init": -5},
        {"PG06"},
        {"dist.distributed_timeout_seconds_after_init": None},
    ),
    # Megatron-FSDP
    ({FSDP: True, "dist.use_torch_fsdp2": True}, {"V120"}, {"dist.use_torch_fsdp2": False}),
    ({FSDP: True, "ddp.fsdp_manual_registration": True}, {"V177"}, {"ddp.nccl_ub": True}),
    # batches and validation sets
    (
        {"train.step_batch_size_schedule": "0:64 1M:128", "train.decrease_batch_size_if_needed": True},
        {"TR08"},
        {"train.decrease_batch_size_if_needed": False},
    ),
    ({**INTERLEAVED, "train.global_batch_size": 12}, {"TR11"}, {GROUP: 3}),
    ({**INTERLEAVED, GROUP: 1}, {"TR11"}, {GROUP: 2}),
    ({**INTERLEAVED, "train.rampup_batch_size": [4, 4, 100]}, {"TR11"}, {VP: None}),
    (
        {**INTERLEAVED, "train.step_batch_size_schedule": "0:8 1M:12"},
        {"TR11"},
        {"train.step_batch_size_schedule": "0:8 1M:16"},
    ),
    (
        {
            **INTERLEAVED,
            "train.global_batch_size": 10,
            "train.decrease_batch_size_if_needed": True,
            GROUP: 3,
        },
        {"TR11"},
        {GROUP: None},
    ),
    ({**INTERLEAVED, "validation.eval_global_batch_size": 4}, {"TR12"}, {"validation.eval_iters": 0}),
    (
        {
            **INTERLEAVED,
            "train.global_batch_size": 4,
            "train.step_batch_size_schedule": "0:8",
        },
        {"TR12"},
        {"train.global_batch_size": 8},
    ),
    (
        {"validation.validation_set_names": ["a", "a"], "validation.multiple_validation_sets": True},
        {"TR10"},
        {"validation.validation_set_names": ["a", "b"]},
    ),
    # hardware
    (
        {"facts.local_world_size": 4, "facts.gpus_per_node": 1},
        {"H05"},
        {"dist.external_gpu_device_mapping": True},
    ),
    # unsupported fields
    ({"mixed_precision": MixedPrecisionConfig(fp32=True)}, {"I11"}, {"mixed_precision": None}),
]


def problems(config, values):
    """Return the ids of the rules that the configuration violates with these values."""
    facts = {"world_size": 4, "env": {}}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        if section == "facts":
            facts[name] = value
        elif section:
            if getattr(config, section) is None:
                setattr(config, section, SimpleNamespace())
            setattr(getattr(config, section), name, value)
        else:
            setattr(config, name, value)
    return {problem.id for problem in check(config.sections(), RULES, facts=facts)}


@pytest.mark.parametrize(
    ("invalid", "ids", "fix"),
    TABLE,
    ids=lambda item: " ".join(map(str, sorted(item) if isinstance(item, set) else item)),
)
def test_an_invalid_configuration_violates_exactly_these_rules_and_can_be_fixed(make, invalid, ids, fix):
    assert problems(make(), invalid) == ids
    assert problems(make(), {**invalid, **fix}) == set()


ALSO = {
    "V056": "V200",
    "V200": "V056",
    "V247": "V056 V200",
    "V062": "V201",
    "V201": "V062",
    "V059": "V203 V204",
    "TR01": "V204",
    "TR09": "V242",
    "SZ06b": "V242",
    "SZ06d": "V119",
    "SZ07": "V242",
    "V060": "S03",
    "S01": "V063",
    "S05": "S04",
    "V122a": "V122b",
    "V147": "V051e",
    "V051a": "V051e",
    "OP07": "V143 V051g",
    "OP08": "V143",
    "PG03": "V144 PG04",
    "PG04": "V144 PG03",
    "V144": "PG03 PG04",
    "V157": "V134",
    "V142": "V141",
}
"""Rule -> the other ones that its example violates in a configuration that is valid otherwise."""
ELSEWHERE = {"PF02", "V051d", "OP04", "V057", "V118", "V180", "TY01"}
"""Rules whose example needs a fact or a field that the configuration lacks, or lacks one that it has."""


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.id not in ELSEWHERE], ids=lambda rule: rule.id
)
def test_the_example_of_a_rule_violates_that_rule_alone(make, rule):
    assert problems(make(), rule.fails) == {rule.id, *ALSO.get(rule.id, "").split()}
