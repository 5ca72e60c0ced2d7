"""Invalid configurations, the rules that each violates, and the fix, as changes to a valid configuration."""

from types import SimpleNamespace

import pytest

from mb_config import RULES, MixedPrecisionConfig, check

TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
CP, VP = "model.context_parallel_size", "model.virtual_pipeline_model_parallel_size"
EP, EXPERTS = "model.expert_model_parallel_size", "model.num_moe_experts"
GRAPH, MODULES = "model.cuda_graph_impl", "model.cuda_graph_modules"
FSDP, DETERMINISTIC = "ddp.use_megatron_fsdp", "model.deterministic_mode"
FLEX = {"model.moe_token_dispatcher_type": "flex"}
OFFLOAD = {"model.fine_grained_activation_offloading": True, "facts.transformer_engine_version": "2.20"}
SHARDED = "optimizer.use_distributed_optimizer"
AWARE = "optimizer.use_precision_aware_optimizer"
ONE_FORMAT = {"optimizer.bf16": True, "model.bf16": True}
PACKS = "dataset.packed_sequence_specs"
INTERLEAVED = {PP: 2, VP: 2}  # two replicas of two micro batches: one group of two
GROUP = "model.microbatch_group_size_per_vp_stage"
EVAL = {"validation.eval_global_batch_size": 6, "validation.eval_micro_batch_size": 4}

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
    (
        {"train.global_batch_size": 32, "train.rampup_batch_size": [8, 5, 64]},
        {"TR02"},
        {"train.rampup_batch_size": [8, 8, 64]},
    ),
    (
        {"train.global_batch_size": 32, "train.rampup_batch_size": [4, 4, 64]},
        {"TR03"},
        {"train.rampup_batch_size": [8, 8, 64]},
    ),
    (
        {"train.rampup_batch_size": [2, 4]},
        {"TR02"},
        {"train.rampup_batch_size": [8, 8, 64], "train.global_batch_size": 32},
    ),
    ({"train.exit_interval": 0}, {"TR04a"}, {"train.exit_interval": None}),
    ({"train.iterations_to_skip": [3, -1]}, {"TR05"}, {"train.iterations_to_skip": [3]}),
    ({"validation.eval_iters": -1}, {"TR06a"}, {"validation.eval_iters": 0}),
    ({"validation.eval_interval": -1}, {"TR06c"}, {"validation.eval_interval": 0}),
    (EVAL, {"V119"}, {"validation.eval_global_batch_size": 16}),
    ({"train.eval_iters": 3}, {"V139d"}, {"train.eval_iters": None, "validation.eval_iters": 3}),
    # layout
    ({TP: 3}, {"V030"}, {TP: 2}),
    ({TP: 0}, {"V030"}, {TP: 1}),
    ({"facts.world_size": 12, TP: 8}, {"V030"}, {"facts.world_size": 16}),
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
    (
        {"model.calculate_per_token_loss": True, "ddp.average_in_collective": True},
        {"V137b"},
        {"ddp.average_in_collective": False},
    ),
    # schedule
    ({"scheduler.lr_warmup_fraction": 0.1}, {"V063"}, {"scheduler.lr_warmup_iters": 0}),
    (
        {"scheduler.lr_warmup_fraction": 10.0, "scheduler.lr_warmup_iters": 0},
        {"S01"},
        {"scheduler.lr_warmup_fraction": 0.1},
    ),
    ({"scheduler.lr_warmup_samples": 10}, {"V062", "V201"}, {"scheduler.lr_warmup_samples": 0}),
    ({"scheduler.lr_wsd_decay_iters": 20}, {"S04"}, {"scheduler.lr_decay_style": "WSD"}),
    (
        {"scheduler.lr_wsd_decay_iters": 200, "scheduler.lr_decay_style": "WSD"},
        {"S05"},
        {"scheduler.lr_wsd_decay_iters": 20},
    ),
    ({"scheduler.lr_warmup_iters": 100}, {"V205"}, {"scheduler.lr_warmup_iters": 99}),
    ({"scheduler.max_steps": 50}, {"V203"}, {"scheduler.max_steps": 1000}),
    ({"optimizer.lr": None}, {"V208"}, {"optimizer.lr": 1e-3}),
    (
        {"scheduler.weight_decay_incr_style": "cosine", "scheduler.end_weight_decay": 0.001},
        {"V208b"},
        {"scheduler.start_weight_decay": 0.0},
    ),
    (
        {"scheduler.lr_decay_style": "WSD"},
        {"S06"},
        {"scheduler.lr_wsd_decay_iters": 20},
    ),
    # numbers of the model
    # precision and optimizer
    ({"optimizer.optimizer": "adamw2"}, {"OP01"}, {"optimizer.optimizer": "muon"}),
    (
        {"optimizer.optimizer": "soap", "facts.emerging_optimizers_installed": False},
        {"OP04"},
        {"facts.emerging_optimizers_installed": True},
    ),
    ({"optimizer.optimizer": "dist_muon", "facts.resolved": True}, {"OP05"}, {"optimizer.bf16": True}),
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
    ({"optimizer.clip_grad": -1.0}, {"OP02"}, {"optimizer.clip_grad": 0.0}),
    ({"optimizer.adam_beta2": 1.0}, {"OP03b"}, {"optimizer.adam_beta2": 0.95}),
    ({"mixed_precision": "bf17_mixed"}, {"V011"}, {"mixed_precision": "bf16-mixed"}),
    (
        {"mixed_precision": MixedPrecisionConfig(fp8="hybrid", fp4="e2m1")},
        {"V015"},
        {"mixed_precision": MixedPrecisionConfig(fp8="hybrid")},
    ),
    (
        {"mixed_precision": "bf16_with_nvfp4_mixed", "facts.transformer_engine_version": "2.6.0"},
        {"V016"},
        {"facts.transformer_engine_version": "2.7.0.dev0"},
    ),
    (
        {"mixed_precision": "bf16_with_mxfp8_mixed", "facts.gpu": "h100"},
        {"H02"},
        {"facts.gpu": "b200"},
    ),
    ({"facts.gpu": "h1000"}, {"H01"}, {"facts.gpu": "h100"}),
    ({**ONE_FORMAT, "optimizer.fp16": True}, {"V146"}, {"optimizer.fp16": False}),
    ({"optimizer.params_dtype": "bf16"}, {"DT02"}, {"optimizer.params_dtype": "bfloat16"}),
    ({"optimizer.main_grads_dtype": "bfloat16"}, {"V051"}, {"optimizer.main_grads_dtype": "float32"}),
    ({AWARE: True, "ddp.use_distributed_optimizer": False}, {"V051e"}, {AWARE: False}),
    (
        {AWARE: True, SHARDED: True, "model.bf16": True, "facts.resolved": True},
        {"V147", "V143"},
        {"optimizer.bf16": True, "ddp.use_distributed_optimizer": True},
    ),
    (
        {**OFFLOAD, "facts.env": {"NVTE_CPU_OFFLOAD_V1": "0"}},
        {"V149"},
        {"facts.env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
    ),
    # wrapper and process groups
    ({"ddp.bucket_size": -5}, {"V050d"}, {"ddp.bucket_size": None}),
    ({"ddp.overlap_param_gather": True}, {"PG03", "PG04", "V144"}, {"ddp.overlap_param_gather": False}),
    ({"ddp.num_buckets": 4, "ddp.bucket_size": 1000}, {"V050b"}, {"ddp.bucket_size": None}),
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
            "facts.env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        },
        {"V050c"},
        {"facts.torch_version": "2.11.0"},
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
    ({"dist.use_decentralized_pg": True}, {"V134"}, {"dist.use_gloo_process_groups": False}),
    (
        {"dist.flight_recorder_trace_buffer_size": 100},
        {"PG05"},
        {"dist.flight_recorder_dump_path": "/tmp/trace_"},
    ),
    ({"dist.distributed_timeout_minutes": 0}, {"PG06"}, {"dist.distributed_timeout_minutes": 1}),
    (
        {"dist.distributed_timeout_seconds_after_init": -5},
        {"PG06"},
        {"dist.distributed_timeout_seconds_after_init": None},
    ),
    ({"rng.seed": 0}, {"V240"}, {"rng.seed": 1}),
    ({"env_vars": {"NCCL_ALGO": ["Ring"]}}, {"V002"}, {"env_vars": {"NCCL_ALGO": "Ring"}}),
    # Megatron-FSDP
    ({FSDP: True, "dist.use_torch_fsdp2": True}, {"V120"}, {"dist.use_torch_fsdp2": False}),
    (
        {FSDP: True, "facts.env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
        {"V176"},
        {"facts.env": {}},
    ),
    ({FSDP: True, "ddp.fsdp_manual_registration": True}, {"V177"}, {"ddp.nccl_ub": True}),
    ({FSDP: True, "dist.use_tp_pp_dp_mapping": True}, {"V179"}, {"dist.use_tp_pp_dp_mapping": False}),
    # deterministic runs, graphs, experts
    (
        {DETERMINISTIC: True, "facts.env": {"NCCL_ALGO": "Ring,Tree"}},
        {"V141"},
        {"facts.env": {"NCCL_ALGO": "Ring"}},
    ),
    # fine-tuning
    # batches and validation sets
    (
        {"train.step_batch_size_schedule": "0:64 1M:128", "train.decrease_batch_size_if_needed": True},
        {"TR08"},
        {"train.decrease_batch_size_if_needed": False},
    ),
    ({"train.step_batch_size_schedule": "0:63"}, {"TR09"}, {"train.step_batch_size_schedule": "0:64"}),
    ({**INTERLEAVED, "train.global_batch_size": 4}, {"TR11"}, {"train.global_batch_size": 8}),
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
    (
        {**INTERLEAVED, "validation.eval_global_batch_size": 4},
        {"TR12"},
        {"validation.eval_global_batch_size": 8},
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
    ({"train.gpu_sniff_test_interval": 10}, {"I03"}, {"train.gpu_sniff_test_interval": None}),
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


def test_the_rules_of_the_table_exist():
    assert set().union(*(ids for _, ids, _ in TABLE)) <= {rule.id for rule in RULES}
