"""Arguments of Megatron-LM: read from texts and scripts, parsed by the table of flags, and converted."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mb_config import from_megatron_args
from mb_config.megatron_lm.arguments import megatron_arguments
from mb_config.megatron_lm.conversion import convert, convert_script
from mb_config.megatron_lm.differences import differences
from mb_config.megatron_lm.flag_table import MegatronFlagError, parse_flags, parse_value, read_flags
from mb_config.megatron_lm.script import carried_variables, read_test_case, read_words

SIZES = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --mock-data"
SCRIPTS = Path(__file__).parent / "megatron_scripts"


def converted(flags):
    """Return the conversion of flags in addition to the sizes of a model."""
    return convert(parse_flags(read_words(f"{SIZES} {flags}").words))


def values(flags):
    """Return the values that follow from flags, without those of the sizes."""
    sizes = converted("")
    found = converted(flags)
    before = {**sizes.defaults, **sizes.given}
    return {
        path: value for path, value in {**found.defaults, **found.given}.items() if before.get(path) != value
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--lr 3e-4 --train-iters 10", {"optimizer.lr": 3e-4, "train.train_iters": 10}),
        (
            "--swiglu",
            {
                "model.activation_func": "silu",
                "model.gated_linear_unit": True,
                "model.ffn_hidden_size": 128,  # int(4 * 64 * 2 / 3 / 64) * 64, as Megatron-LM computes it
            },
        ),
        (
            "--swiglu --ffn-hidden-size 96",
            {
                "model.activation_func": "silu",
                "model.gated_linear_unit": True,
                "model.ffn_hidden_size": 96,
            },
        ),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp",
            {
                "model.cuda_graph_impl": "transformer_engine",
                "model.cuda_graph_modules": ["attn", "mlp"],
                "rng.te_rng_tracker": True,
            },
        ),
        (
            "--cuda-graph-impl local --cuda-graph-scope full_iteration",
            {"model.cuda_graph_impl": "full_iteration", "rng.te_rng_tracker": True},
        ),
        ("--enable-cuda-graph", {"model.cuda_graph_impl": "local", "rng.te_rng_tracker": True}),
        ("--group-query-attention --num-query-groups 2", {"model.num_query_groups": 2}),
        ("--num-query-groups 2", {}),
        ("--use-rotary-position-embeddings", {"model.position_embedding_type": "rope"}),
        ("--rotary-seq-len-interpolation-factor 4", {"model.seq_len_interpolation_factor": 4}),
        ("--use-rope-scaling", {"model.rope_scaling": True}),
        ("--recompute-activations", {"model.recompute_granularity": "selective"}),
        ("--spec local", {"model.transformer_impl": "local"}),
        (
            "--num-experts 4 --moe-layer-freq ([0]*2+[1])",
            {"model.num_moe_experts": 4, "model.moe_layer_freq": [0, 0, 1]},
        ),
        ("--sequence-parallel", {}),
        ("--attention-backend fused", {"model.attention_backend": "fused"}),
        ("--no-save-optim", {"checkpoint.save_optim": False}),
        ("--ddp-bucket-size 100", {"ddp.bucket_size": 100}),
        ("--context-parallel-size 2", {"model.context_parallel_size": 2, "model.cp_comm_type": "p2p"}),
        ("--moe-aux-loss-coeff 0.1", {"model.moe_aux_loss_coeff": 0.1}),
        ("--exp-avg-dtype bf16", {"optimizer.exp_avg_dtype": "bfloat16"}),
        (
            "--no-weight-decay-cond-type apply_wd_to_qk_layernorm",
            {"optimizer.apply_wd_to_qk_layernorm": True},
        ),
        (
            "--mamba-training-ssm-states-dtype bf16",
            {"model.transformer.mamba_training_ssm_states_dtype": "bfloat16"},
        ),
        ("--kv-lora-rank 16 --mla-down-proj-fusion", {}),
        (
            "--hybrid-layer-pattern M*-M",
            {
                "model._target_": "MambaModelConfig",
                "model.hybrid_layer_pattern": "M*-M",
                "model.num_layers": 4,
            },
        ),
        ("--tensor-parallel-num-weight-shards 2", {"model.transformer.tensor_parallel_num_weight_shards": 2}),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            {
                "model.pipeline_model_parallel_size": 2,
                "model.virtual_pipeline_model_parallel_size": 2,
                "model.overlap_p2p_comm": True,
                "model.batch_p2p_comm": False,
                "model.pipeline_dtype": "float32",
            },
        ),
        (
            "--enable-ft-package --calc-ft-timeouts",
            {"ft.enable_ft_package": True, "ft.calc_ft_timeouts": True},
        ),
        ("--profile --use-pytorch-profiler", {"profiling.use_pytorch_profiler": True}),
    ],
)
def test_flags_set_the_fields_of_the_same_meaning(flags, expected):
    assert values(flags) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--cuda-graph-scope attn --cuda-graph-modules mlp",
            "--cuda-graph-scope and --cuda-graph-modules are one",
        ),
        (
            "--enable-cuda-graph --cuda-graph-impl transformer_engine",
            "--enable-cuda-graph: is an earlier name of --cuda-graph-impl local, and it is transformer_engine",
        ),
    ],
)
def test_settings_of_cuda_graphs_that_contradict_each_other(flags, message):
    with pytest.raises(MegatronFlagError, match=message):
        converted(flags)


def test_flags_that_megatron_would_not_read_are_listed():
    flags = (
        "--num-query-groups 2 --sequence-parallel --fim-rate 0.3 --use-pytorch-profiler --cp-comm-type a2a "
        "--mock-data --split 900,100,0"
    )
    assert converted(flags).dropped == {
        "--num-query-groups": "has no effect in Megatron-LM without --group-query-attention",
        "--sequence-parallel": "has no effect in Megatron-LM without tensor parallelism",
        "--fim-rate": "has no effect in Megatron-LM without --fim-data",
        "--use-pytorch-profiler": "has no effect in Megatron-LM without --profile",
        "--cp-comm-type": "has no effect in Megatron-LM without context parallelism",
        "--split": "has no effect in Megatron-LM with --mock-data, whose splits are of equal size",
    }


def test_defaults_of_megatron_are_written_where_they_differ():
    tied = "model.share_embeddings_and_output_weights"
    assert converted("").defaults[tied] is True
    found = converted("--untie-embeddings-and-output-weights")
    assert tied not in {**found.defaults, **found.given}


def test_bfloat16_sets_types_and_the_reduction_of_gradients():
    found = values("--bf16")
    assert found["model.params_dtype"] == found["optimizer.params_dtype"] == "bfloat16"
    assert (found["model.bf16"], found["optimizer.bf16"], found["ddp.grad_reduce_in_fp32"]) == (
        True,
        True,
        True,
    )
    assert "ddp.grad_reduce_in_fp32" not in values("--bf16 --grad-reduce-in-bf16")


def test_data_paths_have_weights_or_none():
    flags = SIZES.replace("--mock-data", "")
    for words, blend in (
        ("--data-path a", [["a"], None]),
        ("--data-path a b", [["a", "b"], None]),
        ("--data-path 0.5 a 0.5 b", [["a", "b"], [0.5, 0.5]]),
    ):
        assert convert(parse_flags(f"{flags} {words}".split())).given["dataset.blend"] == blend
    per_split = convert(parse_flags(f"{flags} --train-data-path a --valid-data-path 1 b 2 c".split())).given
    assert per_split["dataset.blend_per_split"] == [[["a"], None], [["b", "c"], [1.0, 2.0]], None]
    middle = convert(
        parse_flags(f"{flags} --data-path a --fim-data --fim-rate 0.4 --fim-eod-token e".split())
    ).given
    assert (middle["dataset._target_"], middle["dataset.fim_rate"]) == ("GPTFIMDatasetConfig", 0.4)
    tokens = middle["dataset.fim_extra_tokens"]
    assert (tokens["eod"], tokens["prefix"]) == ("e", "<fim_prefix>")


def test_paths_of_the_data_in_files(tmp_path):
    blend, splits = tmp_path / "blend", tmp_path / "splits.json"
    blend.write_text("0.3 a\n0.7 b\n")
    splits.write_text('{"train": "1 a 3 b", "valid": ["c"], "test": ["d"]}')
    flags = SIZES.replace("--mock-data", "").split()
    one = convert(parse_flags([*flags, "--data-args-path", str(blend)]))
    assert (one.given["dataset.blend"], one.dropped) == ([["a", "b"], [0.3, 0.7]], {})
    several = convert(parse_flags([*flags, "--per-split-data-args-path", str(splits)]))
    assert several.given["dataset.blend_per_split"] == [
        [["a", "b"], [1.0, 3.0]],
        [["c"], None],
        [["d"], None],
    ]
    for words, message in (
        (["--data-args-path", "absent"], r"absent cannot be read \(FileNotFoundError"),
        (["--per-split-data-args-path", str(blend)], r"cannot be read \(JSONDecodeError"),
        (["--data-args-path", str(blend), "--data-path", "a"], "is not allowed with other data"),
    ):
        with pytest.raises(MegatronFlagError, match=message):
            convert(parse_flags([*flags, *words]))


def test_a_yaml_file_in_place_of_the_arguments():
    with pytest.raises(MegatronFlagError, match=r"--yaml-cfg a\.yaml: Megatron-LM takes all arguments from"):
        convert_script(read_words(f"{SIZES} --yaml-cfg a.yaml"))
    assert convert(parse_flags([*SIZES.split(), "--yaml-cfg", "a.yaml"])).dropped == {
        "--yaml-cfg": "its values are the arguments"
    }


def test_flags_without_a_counterpart_have_a_reason():
    assert converted(
        "--use-mcore-models --rl-profile --log-world-size-to-tensorboard --ict-head-size 3"
    ).dropped == {
        "--use-mcore-models": "always the case",
        "--rl-profile": "the trainer has no reinforcement learning",
        "--ict-head-size": "there is no biencoder model",
    }
    assert converted("--phase-transition-iterations 3").dropped == {
        "--phase-transition-iterations": "has no counterpart in this project"
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--swiglu --squared-relu", "--swiglu and --squared-relu exclude each other"),
        ("--bf16 --fp16", "--bf16 and --fp16 exclude each other"),
        ("--spec a b", "--spec a b: has no counterpart"),
        (
            "--pipeline-model-parallel-size 3 --num-layers-per-virtual-pipeline-stage 2",
            "do not divide --num-layers 8",
        ),
        (
            "--activations-checkpoint-method uniform",
            r"is --recompute-method in Megatron-LM today\. Rename it",
        ),
        ("--hiden-size 3", r"--hiden-size: unknown flag of Megatron-LM\. Did you mean --hidden-size"),
        ("--qqqqqqq", "--custom-flag=--qqqqqqq leaves it out"),
        ("--lr abc", "argument --lr: invalid float value: 'abc'"),
        ("--lr 1 2", "unexpected words: 2"),
    ],
)
def test_mistakes_are_errors(flags, message):
    with pytest.raises(MegatronFlagError, match=message):
        converted(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [("--num-layers 2 --mock-data", "--seq-length: is required"), ("--seq-length 2", "--data-path: no data")],
)
def test_what_megatron_requires_is_required(flags, message):
    with pytest.raises(MegatronFlagError, match=message):
        convert(parse_flags(flags.split()))


def test_a_script_with_lists_and_variables():
    read = read_words((SCRIPTS / "gpt.sh").read_text(), variables={"CHECKPOINT_PATH": "c", "DATA_PATH": "/d"})
    assert read.words[:4] == ("--num-layers", "24", "--hidden-size", "1024")
    assert read.words[-4:] == ("--eval-iters", "10", "--tensorboard-dir", "logs")
    assert read.words[read.words.index("--data-path") + 1] == "/d"
    assert read.launcher == ("--nproc_per_node", "--nnodes", "--master_addr")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--lr 1\n--bf16", ("--lr", "1", "--bf16")),
        ("A=(\n --lr 1 # rate\n --bf16\n)\nrun.py ${A[*]}", ("--lr", "1", "--bf16")),
        ('A="\n --lr 1 # rate\n --bf16\n"\nrun.py $A', ("--lr", "1", "--bf16")),
        ('A="--lr 1"\nC="python run.py $A"\nsrun --output=x sh -c "$C"', ("--lr", "1")),
        ("srun -l /bin/bash -lc 'cd /code && python -u run.py --lr 1 | tee log'", ("--lr", "1")),
    ],
)
def test_words_of_scripts(text, words):
    assert read_words(text).words == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "no flags were found"),
        (
            "run.py --lr $A --seed $B --split $C --save $D",
            "--set A=VALUE --set B=VALUE --set C=VALUE --set D=VALUE",
        ),
        ("run.py --lr 'a", "cannot be split into words"),
    ],
)
def test_scripts_that_cannot_be_read(text, message):
    with pytest.raises(MegatronFlagError, match=message):
        read_words(text)


def test_values_in_text():
    assert [parse_value(text) for text in ("2", "[1]*2+[0]", "True", "a", "f(1)", 3)] == [
        2,
        [1, 1, 0],
        True,
        "a",
        "f(1)",
        3,
    ]


def test_every_flag_has_a_group():
    assert {flag.group for flag in read_flags().values()} >= {"training", "moe", "data and dataloader"}


def sections_of(conversion):
    """Return a container with the converted values, on top of the defaults of this project."""
    sections = {"checkpoint": CheckpointDefaults(), "model": SimpleNamespace(num_layers=8)}
    for path, value in {**conversion.defaults, **conversion.given}.items():
        section, _, name = path.partition(".")
        setattr(sections.setdefault(section, SimpleNamespace()), name, value)
    sections["ddp"].use_distributed_optimizer = False
    sections["rng"] = SimpleNamespace(seed=7)
    for name in ("tensor", "pipeline"):
        vars(sections["model"]).setdefault(f"{name}_model_parallel_size", 1)
    vars(sections["model"]).setdefault("context_parallel_size", 1)
    return SimpleNamespace(**sections)


class CheckpointDefaults(SimpleNamespace):
    """Checkpoint section with the fields that are stored."""

    ckpt_format, fully_parallel_save, dist_ckpt_optim_fully_reshardable = "torch_dist", True, False
    save_optim = save_rng = True


@pytest.mark.parametrize(
    "flags",
    [
        "--swiglu --ffn-hidden-size 96 --untie-embeddings-and-output-weights --disable-bias-linear",
        "--group-query-attention --num-query-groups 2 --position-embedding-type rope --rotary-base 500000",
        "--num-experts 4 --moe-router-topk 1 --moe-ffn-hidden-size 32 --normalization RMSNorm",
        "--squared-relu --kv-channels 32 --lr 1e-3 --train-iters 10 --global-batch-size 8",
        "--hybrid-layer-pattern M*-MM*-M --tensor-model-parallel-size 2",
    ],
)
def test_settings_become_the_arguments_that_they_were_converted_from(flags):
    given = parse_flags(read_words(f"{SIZES} {flags}").words)
    found = megatron_arguments(sections_of(convert(given)), padded_vocab_size=64, world_size=4)
    assert {name: found.get(name) for name in given if name != "mock_data"} == {
        name: value for name, value in given.items() if name != "mock_data"
    }
    assert found["data_parallel_size"] * found["tensor_model_parallel_size"] == 4
    assert found["padded_vocab_size"] == 64


def test_a_model_of_several_modules_has_no_arguments():
    config = SimpleNamespace(model=SimpleNamespace(vision_num_layers=2))
    assert megatron_arguments(config, padded_vocab_size=64, world_size=1) is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ett|(tt|)*2ttL",
            {
                "model.pipeline_model_parallel_layout": "Ett|(tt|)*2ttL",
                "model.virtual_pipeline_model_parallel_size": 2,
            },
        ),
        ("--padded-vocab-size 512", {"model.vocab_size": 512}),
        (
            "--use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16",
            {"ddp.use_megatron_fsdp": True, "ddp.megatron_fsdp_main_grads_dtype": "bfloat16"},
        ),
        (
            "--pipeline-model-parallel-size 2 --hybrid-layer-pattern M*|M-|M*|M-/M*",
            {
                "model._target_": "MambaModelConfig",
                "model.num_layers": 8,
                "model.virtual_pipeline_model_parallel_size": 2,
            },
        ),
        (
            "--hybrid-layer-pattern M* --mamba-num-heads 4",
            {"model.mamba_num_heads": 4, "model.num_layers": 2},
        ),
        ("--vocab-file v --merge-file m", {"tokenizer.tokenizer_type": "GPT2BPETokenizer"}),
    ],
)
def test_flags_that_set_several_fields(flags, expected):
    found = converted(flags)
    assert {path: {**found.defaults, **found.given}.get(path) for path in expected} == expected


def test_a_t5_has_an_encoder_and_a_decoder():
    flags = (
        "--encoder-num-layers 12 --decoder-num-layers 6 --hidden-size 64 --num-attention-heads 4 --mask-prob 0.2 "
        "--encoder-seq-length 512 --decoder-seq-length 114 --data-path a"
    )
    found = convert(parse_flags(flags.split())).nested()
    assert {
        name: found["model"][name] for name in ("_target_", "encoder_num_layers", "num_layers", "seq_length")
    } == {
        "_target_": "T5ModelConfig",
        "encoder_num_layers": 12,
        "num_layers": 6,
        "seq_length": 512,
    }
    assert found["model"]["decoder_seq_length"] == found["dataset"]["decoder_seq_length"] == 114
    assert (found["dataset"]["_target_"], found["dataset"]["noise_density"]) == ("T5DatasetConfig", 0.2)


def test_a_vocabulary_of_one_file_is_no_gpt():
    with pytest.raises(MegatronFlagError, match="--tokenizer-type: is missing"):
        converted("--vocab-file bert-vocab.txt")


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        (
            "--ckpt-format torch",
            {"--ckpt-format": "checkpoints are written as torch_dist, which Megatron-LM reads"},
        ),
        (
            "--tokenizer-type NullTokenizer --tiktoken-pattern v2",
            {"--tiktoken-pattern": "has no effect in Megatron-LM with --tokenizer-type NullTokenizer"},
        ),
        (
            "--q-lora-rank 8 --cache-mla-latents",
            dict.fromkeys(
                ("--q-lora-rank", "--cache-mla-latents"),
                "has no effect in Megatron-LM without --multi-latent-attention",
            ),
        ),
        (
            "--tp-comm-overlap-cfg a.yaml",
            {"--tp-comm-overlap-cfg": "copy the contents of a.yaml to model.tp_comm_overlap_cfg"},
        ),
    ],
)
def test_values_without_a_counterpart_set_nothing(flags, dropped):
    found = converted(flags)
    assert found.dropped == dropped
    assert (
        not {"checkpoint.ckpt_format", "tokenizer.tiktoken_pattern", "model.tp_comm_overlap_cfg"}
        & found.given.keys()
    )


def test_a_value_with_blanks_that_a_script_has_split():
    given = parse_flags(["--step-batch-size-schedule", "0:16", "2.4B:320", "4.8B:624", "--lr", "1"])
    assert given == {"step_batch_size_schedule": "0:16 2.4B:320 4.8B:624", "lr": 1}


CUSTOM = read_words(f"{SIZES} --my-flag 3 4 --lr 1 --other")


def test_unknown_flags_are_refused_all_at_once():
    with pytest.raises(MegatronFlagError) as refused:
        convert_script(CUSTOM)
    assert str(refused.value).splitlines() == [
        "--my-flag: unknown flag of Megatron-LM. --custom-flag=--my-flag leaves it out.",
        "--other: unknown flag of Megatron-LM. --custom-flag=--other leaves it out.",
        "Flags of custom code are left out by --ignore-unknown.",
    ]


def test_unknown_flags_are_left_out_with_their_values():
    found = convert_script(CUSTOM, ignore_unknown=True)
    assert found.left_out == ("--my-flag 3 4", "--other")
    assert found.given["optimizer.lr"] == 1


TEST_CASE = {
    "ENV_VARS": {"CUDA_DEVICE_MAX_CONNECTIONS": 1, "N_REPEAT": 5},
    "TEST_TYPE": "regular",
    "MODEL_ARGS": {
        "--num-layers": 12,
        "--mock-data": True,
        "--data-cache-path": "${CACHE}/x",
        "--split": "949,50,1",
        "--moe-layer-freq": "([0]*2+[1])",
        "--cp-comm-type": "[p2p a2a]",
        "--hierarchical-context-parallel-sizes": "2 2",
    },
}
"""In the form of a model_config.yaml of Megatron-LM's functional tests."""


def test_a_functional_test_of_megatron_lm():
    read = read_test_case(TEST_CASE, variables={"CACHE": "/c"})
    assert read.words == (
        *("--num-layers", "12", "--mock-data", "--data-cache-path", "/c/x", "--split", "949,50,1"),
        *("--moe-layer-freq", "([0]*2+[1])", "--cp-comm-type", "p2p", "a2a"),
        *("--hierarchical-context-parallel-sizes", "2", "2"),
    )
    assert carried_variables(read.environment)[0] == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert read.notes == ("keys of the test that are not part of a configuration: TEST_TYPE",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "variables without a value: CACHE"),
        ({"MODE": "inference"}, "MODE: is inference"),
        ({"MODEL_ARGS": None}, "MODEL_ARGS: is not a mapping"),
        ({"MODEL_ARGS": {"trainer.devices": 8}}, "trainer.devices: is a setting of NeMo"),
    ],
)
def test_functional_tests_that_cannot_be_converted(change, message):
    with pytest.raises(MegatronFlagError, match=message):
        read_test_case({**TEST_CASE, **change})


def test_environment_variables_are_carried_or_named():
    carried, named = carried_variables(
        {
            "NCCL_ALGO": "Ring",
            "MASTER_ADDR": "localhost",
            "WANDB_API_KEY": "x",
            "LD_PRELOAD": "/x.so",
            "NVTE_DEBUG": "\ue000X\ue001",
            "RUN_NAME": "a",
        }
    )
    assert carried == {"NCCL_ALGO": "Ring"}
    assert named == {
        "MASTER_ADDR": "the launcher sets it",
        "WANDB_API_KEY": "a secret; set it in the shell",
        "LD_PRELOAD": "it loads code; set it in the shell",
        "NVTE_DEBUG": "its value is not known without running the script",
        "RUN_NAME": "no library of the training reads it; set it in the shell if custom code does",
    }


def test_unknown_arguments_of_a_namespace():
    args = {"num_layers": 2, "seq_length": 8, "mock_data": True, "my_option": 1}
    with pytest.raises(MegatronFlagError, match="unknown arguments of Megatron-LM: my_option"):
        from_megatron_args(args)
    found = from_megatron_args(SimpleNamespace(**args), ignore_unknown=True)
    assert found.left_out == ("my_option",)
    assert found.given["model.num_layers"] == 2


def test_settings_that_differ_from_the_checkpoint_are_listed():
    script = converted("--lr 2 --seed 1 --bf16 --num-experts 4 --load x --ffn-hidden-size 128")
    stored = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_layers": 8,
        "seq_length": 32,
        "mock_data": True,
        "lr": 1.0,
        "seed": 1,
        "bf16": True,
        "num_experts": None,
        "load": "y",
        "kv_channels": 16,
        "ffn_hidden_size": 256,
        "hidden_dropout": 0.0,
    }
    found = differences(script, stored, name="x.sh", without=["checkpoint.load"])
    assert [*found] == [
        "model.ffn_hidden_size: 128 in x.sh, 256 in the checkpoint",
        "model.hidden_dropout: 0.1 in x.sh, 0.0 in the checkpoint",
        "model.num_moe_experts: 4 in x.sh, not set in the checkpoint",
        "optimizer.lr: 2.0 in x.sh, 1.0 in the checkpoint",
    ]


@pytest.mark.parametrize(
    ("variables", "flags", "backend"),
    [
        ("NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0", "", "flash"),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=1", "", "fused"),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", "", "unfused"),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", "--attention-backend fused", "fused"),
        ("NVTE_FUSED_ATTN=1 NVTE_UNFUSED_ATTN=0", "", None),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0 NVTE_UNFUSED_ATTN=0", "", None),
    ],
)
def test_variables_that_exclude_attention_kernels_are_the_backend(variables, flags, backend):
    script = f"export {variables} NCCL_DEBUG=WARN\ntorchrun pretrain_gpt.py {SIZES} {flags}"
    converted = convert_script(read_words(script))
    assert converted.nested()["model"].get("attention_backend") == backend
    assert converted.variables == {"NCCL_DEBUG": "WARN"}
