"""Invalid requests: arguments, number of processes, the violated rules, and the arguments that fix the request."""

import pytest

from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_trainer.requests import examine_request

TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
CP, VP = "model.context_parallel_size", "model.virtual_pipeline_model_parallel_size"
EP, EXPERTS = "model.expert_model_parallel_size", "model.num_moe_experts"

TABLE = [
    # length and batches
    ("train.global_batch_size=7", 1, "V242", "train.global_batch_size=16"),
    ("train.micro_batch_size=3", 1, "V242", "train.micro_batch_size=4"),
    ("", 2, "V242", "train.global_batch_size=16"),
    ("train.micro_batch_size=0", 1, "V118", "train.micro_batch_size=8"),
    ("train.global_batch_size=null", 1, "V118", "train.global_batch_size=8"),
    ("train.train_iters=null", 1, "V056", "train.train_iters=50"),
    ("train.train_iters=0", 1, "V204", "train.train_iters=50"),
    ("train.train_samples=1000", 1, "V056 V200", "train.train_samples=null"),
    ("train.num_epochs=2", 1, "V100", "train.num_epochs=null"),
    ("train.rampup_batch_size=[2,4]", 1, "TR02", "train.rampup_batch_size=null"),
    ("train.rampup_batch_size=[3,5,100]", 1, "TR03", "train.rampup_batch_size=null"),
    ("train.exit_interval=0", 1, "TR04a", "train.exit_interval=10"),
    ("train.exit_duration_in_mins=-5", 1, "TR04b", "train.exit_duration_in_mins=5"),
    ("train.iterations_to_skip=[-1]", 1, "TR05", "train.iterations_to_skip=[1]"),
    ("train.manual_gc=true train.manual_gc_interval=-1", 1, "LP02", "train.manual_gc_interval=0"),
    ("validation.eval_interval=-1", 1, "TR06c", "validation.eval_interval=0"),
    ("validation.eval_iters=-1", 1, "TR06a", "validation.eval_iters=0"),
    ("validation.eval_micro_batch_size=3", 1, "V119", "validation.eval_micro_batch_size=2"),
    # optimizer and schedule
    ("optimizer.lr=-1.0", 1, "V208", "optimizer.lr=0.002"),
    ("optimizer.lr=null", 1, "V208", "optimizer.lr=0.002"),
    ("optimizer.min_lr=1.0", 1, "V208", "optimizer.min_lr=0.0"),
    ("optimizer.optimizer=adamw2", 1, "OP01", "optimizer.optimizer=adam"),
    ("optimizer.clip_grad=-1.0", 1, "OP02", "optimizer.clip_grad=0"),
    ("optimizer.adam_beta1=1.5", 1, "OP03a", "optimizer.adam_beta1=0.9"),
    ("optimizer.bf16=true optimizer.fp16=true", 1, "V146", "optimizer.bf16=false optimizer.fp16=false"),
    ("scheduler.lr_decay_style=WSD", 1, "S06", "scheduler.lr_wsd_decay_iters=30"),
    (
        "scheduler.start_weight_decay=0.5 scheduler.end_weight_decay=0.1",
        1,
        "V060 S03",
        "scheduler.end_weight_decay=0.5",
    ),
    ("scheduler.lr_decay_iters=0", 1, "V204", "scheduler.lr_decay_iters=null"),
    ("scheduler.lr_warmup_iters=500", 1, "V205", "scheduler.lr_warmup_iters=50"),
    ("scheduler.lr_warmup_fraction=1.5", 1, "V063 S01", "scheduler.lr_warmup_fraction=null"),
    (
        "scheduler.lr_decay_iters=100 scheduler.lr_warmup_samples=50",
        1,
        "V062 V201",
        "scheduler.lr_warmup_samples=0",
    ),
    # parallel layout
    (f"{TP}=2", 1, "V030", f"{TP}=1"),
    (f"{TP}=3", 3, "P02 P03 G28", f"{TP}=1 train.global_batch_size=24"),
    (f"{PP}=3", 3, "P05", "model.num_layers=6"),
    (f"{VP}=2", 1, "P07", f"{VP}=null"),
    (f"{PP}=2 {VP}=2", 2, "TR11", "train.micro_batch_size=4"),
    (
        f"{PP}=2 {VP}=2 train.micro_batch_size=4 model.batch_p2p_comm=true model.overlap_p2p_comm=false",
        2,
        "O05",
        "model.batch_p2p_comm=false model.overlap_p2p_comm=true",
    ),
    ("model.sequence_parallel=true", 1, "P06", "model.sequence_parallel=false"),
    (
        f"{CP}=2 model.seq_length=258 dataset.seq_length=258",
        2,
        "V137",
        "model.seq_length=256 dataset.seq_length=256",
    ),
    (f"{CP}=2 model.cp_comm_type=[p2p]", 2, "V154", "model.cp_comm_type=p2p"),
    (f"{CP}=4 model.cp_comm_type=a2a+p2p", 4, "V155", "model.cp_comm_type=p2p"),
    ("model.num_attention_heads=7", 1, "P04 G03", "model.num_attention_heads=8"),
    ("model.num_query_groups=3", 1, "P04", "model.num_query_groups=2"),
    (f"{EP}=2 train.global_batch_size=16", 2, "P08", f"{EXPERTS}=4"),
    (f"{EXPERTS}=4 {TP}=2", 2, "P10", "model.sequence_parallel=true"),
    (f"{EXPERTS}=4 model.moe_router_topk=8", 1, "G11", "model.moe_router_topk=2"),
    # model
    ("model.num_layers=0", 1, "G01", "model.num_layers=2"),
    ("model.hidden_size=255", 1, "G03 G32", "model.hidden_size=256"),
    ("model.seq_length=128", 1, "V139b", "dataset.seq_length=128"),
    ("model.hidden_dropout=1.5", 1, "MN01a", "model.hidden_dropout=0.1"),
    ("model.init_method_std=-1.0", 1, "MN02a", "model.init_method_std=0.02"),
    ("model.vocab_size=100", 1, "V243a", "model.vocab_size=4096"),
    (
        "model.recompute_granularity=full",
        1,
        "G13",
        "model.recompute_method=uniform model.recompute_num_layers=1",
    ),
    (
        "model.recompute_granularity=selective model.recompute_modules=[nonsense]",
        1,
        "K02",
        "model.recompute_modules=[core_attn]",
    ),
    (
        "model.cuda_graph_impl=full_iteration rerun_state_machine.check_loss_immediately=true",
        1,
        "V127",
        "rerun_state_machine.check_loss_immediately=false",
    ),
    (
        "model.cuda_graph_impl=full_iteration ddp.check_for_nan_in_grad=true",
        1,
        "V127a",
        "ddp.check_for_nan_in_grad=false",
    ),
    ("optimizer.optimizer_cuda_graph=true", 1, "T39", "optimizer.optimizer_cuda_graph=false"),
    # precision and wrapper
    ("model.bf16=true model.fp16=true", 1, "V145", "model.bf16=false model.fp16=false"),
    ("mixed_precision=bf16_mixed model.fp16=true", 1, "V017", "model.fp16=false"),
    ("model.fp8=hybrid model.fp4=e2m1", 1, "K09", "model.fp8=null model.fp4=null"),
    ("ddp.bucket_size=-5", 1, "V050d", "ddp.bucket_size=null"),
    (
        "ddp.overlap_param_gather=true train.global_batch_size=16",
        2,
        "PG03 PG04",
        "ddp.overlap_param_gather=false",
    ),
    ("dist.use_decentralized_pg=true", 1, "V134", "dist.use_gloo_process_groups=false"),
    (
        "dist.use_decentralized_pg=true dist.use_gloo_process_groups=false "
        "dist.high_priority_stream_groups=[dp]",
        1,
        "T23",
        "dist.use_decentralized_pg=false",
    ),
    ("ddp.use_megatron_fsdp=true", 1, "V175", "checkpoint.ckpt_format=fsdp_dtensor"),
    (
        "ddp.use_megatron_fsdp=true checkpoint.ckpt_format=fsdp_dtensor logger.log_l2_norm_grad_to_tensorboard=true",
        1,
        "T36",
        "logger.log_l2_norm_grad_to_tensorboard=false",
    ),
    (
        "dist.use_torch_fsdp2=true ddp.use_megatron_fsdp=true",
        1,
        "V120 V175",
        "ddp.use_megatron_fsdp=false",
    ),
    (
        "dist.use_torch_fsdp2=true model.share_embeddings_and_output_weights=true",
        1,
        "FS02",
        "model.share_embeddings_and_output_weights=false",
    ),
    ("rng.seed=0", 1, "V240", "rng.seed=1"),
    # checkpoints, loggers, data
    ("checkpoint.save_interval=0", 1, "CK10", "checkpoint.save_interval=null"),
    ("checkpoint.most_recent_k=0", 1, "CK01", "checkpoint.most_recent_k=1"),
    ("checkpoint.ckpt_format=fsdp_dtensor", 1, "V130", "checkpoint.ckpt_format=torch_dist"),
    (
        "checkpoint.async_save=true checkpoint.ckpt_format=torch",
        1,
        "CK03",
        "checkpoint.ckpt_format=torch_dist",
    ),
    ("checkpoint.hf_source_path=/tmp", 1, "CK33", "checkpoint.also_save_hf_checkpoint=true"),
    (
        "checkpoint.save=null checkpoint.non_persistent_save_interval=5 checkpoint.non_persistent_ckpt_type=global",
        1,
        "CK14",
        "checkpoint.non_persistent_save_interval=null",
    ),
    ("tokenizer.trust_remote_code=true", 1, "D129", "tokenizer.trust_remote_code=false"),
    ("checkpoint.pretrained_checkpoint=/nowhere", 1, "V064", "checkpoint.pretrained_checkpoint=null"),
    ("checkpoint.non_persistent_save_interval=5", 1, "CK05", "checkpoint.non_persistent_save_interval=null"),
    ("logger.log_interval=0", 1, "L05", "logger.log_interval=1"),
    ("dataset.vocab_size=10", 1, "D06", "dataset.vocab_size=4096"),
    ("dataset.validation_fraction=1.5", 1, "D05", "dataset.validation_fraction=0.1"),
    ("dataset.num_workers=-1", 1, "D02", "dataset.num_workers=0"),
    ("tokenizer.tokenizer_type=Nonsense", 1, "D11", "tokenizer.tokenizer_type=ByteTokenizer"),
    # overlap
    ("comm_overlap.tp_comm_overlap=true", 1, "O02 O04", "comm_overlap.tp_comm_overlap=false"),
    ("comm_overlap.delay_wgrad_compute=true", 1, "O10a", "comm_overlap.delay_wgrad_compute=false"),
    (
        "comm_overlap.bucket_size=-1 ddp.use_distributed_optimizer=true optimizer.use_distributed_optimizer=true",
        1,
        "O25",
        "comm_overlap.bucket_size=1000",
    ),
    # five violations at once
    (
        f"{TP}=3 train.micro_batch_size=5 optimizer.lr=-1.0 checkpoint.save_interval=0 ddp.bucket_size=0",
        3,
        "P02 P03 G28 V242 V208 CK10 V050d",
        f"{TP}=1 train.micro_batch_size=4 train.global_batch_size=12 optimizer.lr=0.002 checkpoint.save_interval=5 "
        "ddp.bucket_size=null",
    ),
]


def broken(words, processes, out):
    """Return the ids of the rules that a request violates."""
    found = examine_request(
        CommandInput(arguments=words.split(), out=out), target=TargetMachine(world_size=processes)
    )
    return {problem.id for problem in found.result.problems}


@pytest.mark.parametrize(("words", "processes", "ids", "fix"), TABLE, ids=lambda item: str(item))
def test_a_bad_request_violates_exactly_these_rules_and_the_fix_none(words, processes, ids, fix, tmp_path):
    assert broken(words, processes, tmp_path) == set(ids.split())
    assert broken(f"{words} {fix}", processes, tmp_path) == set()
