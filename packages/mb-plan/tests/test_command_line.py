"""Command lines of Megatron-LM: what is read, what is noted, and what is an error."""

import json
import shlex

import pytest

from mb_plan import best_layouts, describe_run, read_command_line
from mb_plan.errors import ModelFileError, PlanError
from mb_plan.megatron_lm.command_line import flag_table
from mb_plan.shape.sources import read_file

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 "
    "--micro-batch-size 1 --global-batch-size 128 --train-iters 100 --bf16 --tensor-model-parallel-size 2 "
    "--sequence-parallel --use-distributed-optimizer"
)
"""Llama 3.1 8B, of which Meta publishes 8,030,261,248 parameters."""
SMALL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
)
SMALL += " --micro-batch-size 2 --vocab-size 1000"


def model_of(flags):
    return read_command_line(f"{SMALL} {flags}").model


def planned(line, *, gpus="8xh100", **options):
    return best_layouts(describe_run(read_command_line(line), gpus=gpus, **options))[0]


def test_a_command_line_is_planned_as_it_is():
    best = planned(f"torchrun --nproc_per_node 8 pretrain_gpt.py {LLAMA}", gpus="64xh100")
    assert best.plan.parameters == 8_030_261_248
    assert (best.plan.shape.tp, best.plan.data_parallel_size, best.plan.num_microbatches) == (2, 32, 4)
    assert best.prediction.days == pytest.approx(100 * best.prediction.step_seconds / 86_400)


def test_defaults_are_those_of_megatron_lm():
    """Tied embeddings, learned positions, biases, LayerNorm, an MLP of 4h, Adam in float32, no sharding."""
    best = planned(f"pretrain_gpt.py {SMALL}")
    rows, h = 1024, 64  # 1,000 padded to a multiple of 128
    layer = 4 * h * h + 4 * h + 8 * h * h + 5 * h + 4 * h
    assert best.plan.parameters == rows * h + 128 * h + 2 * layer + 2 * h
    memory = best.plan.peak.rank_bytes
    assert [size / best.plan.parameters for size in (memory.weights, memory.gradients, memory.optimizer)] == [
        4,
        4,
        8,
    ]
    assert best.plan.tokens_per_step == 8 * 2 * 128  # a microbatch of each replica
    assert best.prediction is None
    assert "float32 is not modelled" in best.unpredicted


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--swiglu", "ffn_hidden_size", 128),  # 8/3 h = 170.7, rounded down to a multiple of 64
        ("--quick-geglu", "gated_linear_unit", True),
        ("--num-query-groups 2", "num_query_groups", None),  # only with --group-query-attention
        ("--group-query-attention --num-query-groups 2", "num_query_groups", 2),
        ("--disable-bias-linear --add-qkv-bias", "add_qkv_bias", True),
        ("--use-rotary-position-embeddings --no-position-embedding", "position_embedding_type", "rope"),
        ("--sequence-parallel", "sequence_parallel", False),  # without tensor parallelism
        ("--window-size 127,0 --window-attn-skip-freq 2", "window_size", [127, 0]),
        ("--num-experts 2 --moe-layer-freq ([0]+[1])*1", "moe_layer_freq", [0, 1]),
        ("--num-experts 2 --moe-layer-freq [1]*2", "num_moe_experts", 2),
        ("--moe-enable-deepep --moe-flex-dispatcher-backend hybridep", "moe_flex_dispatcher_backend", "deepep"),
        ("--recompute-activations", "recompute_granularity", "selective"),
        ("--moe-layer-recompute", "recompute_modules", ["core_attn", "moe"]),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
         "virtual_pipeline_model_parallel_size", None),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t|t|L",
         "virtual_pipeline_model_parallel_size", 2),
        ("--hybrid-layer-pattern M*|M- --pipeline-model-parallel-size 1", "virtual_pipeline_model_parallel_size", 2),
        ("--hybrid-override-pattern M*-M", "num_layers", 4),
        ("--hybrid-layer-pattern M*- --mtp-num-layers 2 --mtp-hybrid-override-pattern *-", "hybrid_layer_pattern",
         "M*-/*-/*-"),
        ("--enable-cuda-graph", "cuda_graph_impl", "local"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "cuda_graph_impl", "full_iteration"),
        ("--spec local", "transformer_impl", "local"),
        ("--decoder-seq-length 64", "encoder_num_layers", 2),
    ],
)  # fmt: skip
def test_values_that_follow_from_other_flags(flags, field, value):
    assert model_of(flags)[field] == value


def test_a_t5_is_known_by_its_program():
    assert read_command_line(f"pretrain_t5.py {SMALL}").model["decoder_seq_length"] == 128


def test_the_vocabulary_is_padded_for_the_tensor_parallel_ranks():
    def rows(flags, **fixed):
        run = describe_run(read_command_line(f"{SMALL} {flags}"), gpus="8xh100")
        return best_layouts(run, fixed=fixed)[0].plan.shape.vocab

    assert rows("--tensor-model-parallel-size 4") == 1024
    assert rows("--tensor-model-parallel-size 4 --make-vocab-size-divisible-by 100") == 1200
    assert rows("--make-vocab-size-divisible-by 100", tensor_model_parallel_size=4) == 1200
    assert rows("--padded-vocab-size 1001") == 1001
    assert rows("--no-pad-vocab-size") == 1000


def test_samples_and_an_early_exit_are_steps():
    def steps(flags):
        run = describe_run(read_command_line(f"{SMALL} --global-batch-size 32 {flags}"), gpus="8xh100")
        return run.sections(run.layout)["train"]["train_iters"]

    assert steps("--train-samples 1000") == 31
    assert steps("--train-iters 500 --exit-interval 22") == 22
    assert steps("--train-iters 500") == 500


def test_a_schedule_of_batch_sizes_is_planned_for_the_last():
    best = planned(f"{SMALL} --bf16 --step-batch-size-schedule 0:16 1M:64 --train-samples 6400")
    assert best.plan.tokens_per_step == 64 * 128
    assert best.prediction.days == pytest.approx(100 * best.prediction.step_seconds / 86_400)
    assert (
        planned(f"{SMALL} --rampup-batch-size 16 16 100 --global-batch-size 64").plan.tokens_per_step
        == 64 * 128
    )


def test_options_take_the_place_of_flags():
    source = read_command_line(LLAMA)
    longer = describe_run(
        source, gpus="8xh100", seq_length=4096, global_batch_size=16, tokens="1B", precision="fp8"
    )
    sections = longer.sections({**longer.layout, "tensor_model_parallel_size": 8})
    assert sections["train"]["global_batch_size"] == 16
    assert sections["train"]["train_iters"] == -(-(10**9) // (16 * 4096))
    assert (sections["model"]["fp8"], sections["model"]["tensor_model_parallel_size"]) == ("hybrid", 8)
    assert describe_run(source.with_sizes(layers=16, vocab=1000), gpus="8xh100").model["vocab_size"] == 1024


def test_a_search_chooses_the_layout_of_a_run():
    run = describe_run(read_command_line(LLAMA), gpus="8xh100", search=True)
    points = best_layouts(run, number=50)
    assert len({tuple(point.values.items()) for point in points}) > 10
    assert points[0].prediction.step_seconds <= planned(LLAMA).prediction.step_seconds


@pytest.mark.parametrize(
    ("flags", "size"), [("", 12), ("--dist-ckpt-optim-fully-reshardable", 14), ("--no-save-optim", 2)]
)
def test_the_form_of_the_optimizer_state_sets_the_size_of_a_checkpoint(flags, size):
    plan = planned(f"{LLAMA} --use-precision-aware-optimizer {flags}", gpus="64xh100").plan
    assert plan.checkpoint_bytes == size * plan.parameters


def test_flags_that_a_plan_does_not_distinguish_are_noted():
    source = read_command_line(
        f"pretrain_gpt.py {LLAMA} --overlap-grad-reduce --tp-comm-overlap --lr 3e-4 --save x"
    )
    assert source.notes == (
        "not distinguished, but as in the published runs on average: --overlap-grad-reduce, --tp-comm-overlap",
    )


def test_all_flags_that_cannot_be_planned_are_one_error():
    with pytest.raises(ModelFileError) as error:
        read_command_line(
            f"{SMALL} --num-layer 3 --cpu-offloading-num-layers 2 --lr 1 --my-flag a b --use-torch-fsdp2"
        )
    assert str(error.value).splitlines() == [
        "--num-layer: is no flag of Megatron-LM 0.19. Did you mean --num-layers or --mtp-num-layers?",
        "--cpu-offloading-num-layers: has an effect on the model, its memory or its time that is not planned.",
        "--my-flag: is no flag of Megatron-LM 0.19.",
        "--use-torch-fsdp2: has an effect on the model, its memory or its time that is not planned.",
        "Take these flags out of the line to plan the run without them.",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"pretrain_bert.py {SMALL}", "pretrain_bert.py: only pretrain_gpt.py"),
        ("echo hello", "echo: is neither a flag of Megatron-LM nor followed by a program"),
        (f"{SMALL} | tee log", "unexpected words: '|' tee log"),
        (f"{SMALL} --lr 'open", "the command line is incomplete (No closing quotation)"),
        (f"{SMALL} --num-layers many", "invalid int value: 'many'"),
        (f"{SMALL} --normalization GroupNorm", "invalid choice: 'GroupNorm'"),
        ("--num-layers 2 --micro-batch-size 1", "--seq-length: is missing"),
        ("--num-layers 2 --seq-length 8", "--micro-batch-size: is missing"),
        (f"{SMALL} --bf16 --fp16", "--bf16 and --fp16 exclude each other"),
        (f"{SMALL} --swiglu --squared-relu", "--swiglu and --squared-relu exclude each other"),
        (f"{SMALL} --position-embedding-type relative", "relative is not planned"),
        (f"{SMALL} --no-position-embedding", "--no-position-embedding: Megatron-LM rejects it"),
        (f"{SMALL} --spec my.module my_spec", "--spec: my.module my_spec may be other layers"),
        (f"{SMALL} --cuda-graph-impl local --external-cuda-graph", "are one setting"),
        (f"{SMALL} --moe-layer-freq open(1)", "--moe-layer-freq: 'open(1)' is neither a number nor a list"),
        (f"{SMALL} --moe-layer-freq [1]*99999999", "is neither a number nor a list"),
        (f"{SMALL} --moe-layer-freq 9**9", "is neither a number nor a list"),
        (
            f"{SMALL} --train-iters 1 --train-samples 1",
            "--train-iters and --train-samples exclude each other",
        ),
        (f"{SMALL} --global-batch-size 8 --step-batch-size-schedule 0:8", "exclude each other"),
        (
            f"{SMALL} --num-layers-per-virtual-pipeline-stage 3",
            "3 layers in each chunk of 1 stages do not divide 2",
        ),
        (
            f"{SMALL} --num-layers-per-virtual-pipeline-stage 1 --num-virtual-stages-per-pipeline-rank 2",
            "exclude each other",
        ),
    ],
)
def test_other_command_lines_are_refused(line, message):
    with pytest.raises(ModelFileError) as error:
        read_command_line(line)
    assert message in str(error.value)


def test_lines_that_a_shell_joins_are_one():
    assert read_command_line(SMALL.replace(" --", " \\\n  --")).model == model_of("")


def test_each_flag_has_one_use():
    flags = flag_table().flags.values()
    options = [option for flag in flags for option in flag.options]
    assert len(options) == len(set(options))
    assert {flag.use for flag in flags} == {
        "used",
        "not_distinguished",
        "no_effect",
        "not_planned",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.sh", "torchrun pretrain_gpt.py"),
        ("train", "#!/bin/bash\n"),
        ("case.yaml", "MODEL_ARGS: {--bf16: true}"),
    ],
)
def test_scripts_are_converted_by_mb_config(tmp_path, name, text):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=r"mb-config import-args .* --out run.yaml"):
        read_file(tmp_path / name)


RUN = """
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, position_embedding_type: rope, bf16: true}
tokenizer: {vocab_size: 1000}
train: {micro_batch_size: 2, global_batch_size: 32, train_iters: 10}
dataset: {seq_length: 128}
optimizer: {bf16: true, optimizer: sgd, sgd_momentum: 0.0}
ddp: {use_distributed_optimizer: false}
"""


def test_a_file_of_a_run_is_planned_with_all_its_sections(tmp_path):
    """Its optimizer, its gradients and its length were those of current recipes, and its vocabulary was not padded."""
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / "run.yaml").write_text(RUN)
    best = best_layouts(describe_run(read_file(tmp_path / "run.yaml"), gpus="8xh100"))[0]
    memory, parameters = best.plan.peak.rank_bytes, best.plan.parameters
    assert [size / parameters for size in (memory.weights, memory.gradients, memory.optimizer)] == [2, 2, 4]
    assert best.plan.shape.vocab == 1024
    assert best.prediction.days == pytest.approx(10 * best.prediction.step_seconds / 86_400)


def test_adapters_of_a_run_are_planned(tmp_path):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / "run.yaml").write_text(RUN + "peft: {_target_: LoRA, dim: 8, target_modules: [linear_qkv]}\n")
    best = best_layouts(describe_run(read_file(tmp_path / "run.yaml"), gpus="8xh100"))[0]
    assert best.plan.adapter_parameters == 2 * 8 * (64 + 3 * 64)


def test_a_recipe_of_precision_is_not_guessed(tmp_path):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / "run.yaml").write_text(RUN.replace(", bf16: true}", "}") + "mixed_precision: bf16_mixed\n")
    source = read_file(tmp_path / "run.yaml")
    with pytest.raises(
        PlanError, match=r"mixed_precision: is 'bf16_mixed', a recipe that only the trainer resolves"
    ):
        describe_run(source, gpus="8xh100")
    memory = best_layouts(describe_run(source, gpus="8xh100", precision="bf16"))[0].plan.peak.rank_bytes
    assert memory.gradients == 2 * memory.weights


def test_a_precision_that_the_gpu_does_not_have_is_refused():
    with pytest.raises(PlanError, match="--precision: h100 does not compute in fp4"):
        describe_run(read_command_line(LLAMA), gpus="8xh100", precision="fp4")


def test_the_program_takes_a_line_in_quotation_marks_or_behind_dashes(program):
    line = f"torchrun --nproc_per_node 8 pretrain_gpt.py {LLAMA} --overlap-grad-reduce"
    quoted = program(line, "--gpus", "64xh100", "--json")
    behind = program("--gpus", "64xh100", "--json", "--", *shlex.split(line))
    assert quoted.exit_code == behind.exit_code == 0, quoted.output
    assert json.loads(quoted.stdout) == json.loads(behind.stdout)
    found = json.loads(quoted.stdout)
    assert found["parameters"]["total"] == 8_030_261_248
    assert (found["batch"], len(found["layouts"])) == (128, 1)
    assert (
        "note: not distinguished, but as in the published runs on average: --overlap-grad-reduce"
        in quoted.stderr
    )
    assert len(json.loads(program(line, "--gpus", "64xh100", "--search", "--json").stdout)["layouts"]) == 5


def test_the_program_plans_the_memory_of_a_run_whose_time_is_not_modelled(program):
    done = program(SMALL)
    assert done.exit_code == 0, done.output
    assert "step             not predicted: the time of a run in float32 is not modelled" in done.stdout
    assert json.loads(program(SMALL, "--json").stdout)["predicted"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"{SMALL} --nonsense",), "--nonsense: is no flag of Megatron-LM"),
        ((SMALL.replace("--vocab-size 1000", "--tokenizer-type HuggingFaceTokenizer"),), "Give --vocab"),
    ],
)
def test_the_program_refuses_with_exit_code_two(program, words, message):
    done = program(*words)
    assert (done.exit_code, message in " ".join(done.stderr.replace("│", " ").split())) == (2, True)
