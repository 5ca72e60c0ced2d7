"""Random command lines in the form of the scripts that start Megatron-LM."""

import random

CHOICES = (
    (0.5, "--swiglu", "--swiglu", "--quick-geglu", "--squared-relu"),
    (0.5, "--disable-bias-linear", "--disable-bias-linear --add-qkv-bias"),
    (0.5, "--normalization RMSNorm", "--norm-epsilon 1e-6", "--apply-layernorm-1p"),
    (
        0.6,
        "--position-embedding-type rope",
        "--use-rotary-position-embeddings",
        "--position-embedding-type none",
    ),
    (0.3, "--rotary-base 500000", "--rotary-percent 0.5", "--rotary-seq-len-interpolation-factor 2"),
    (0.2, "--use-rope-scaling", "--use-rope-scaling --rope-scaling-factor 4.0", "--rotary-interleaved"),
    (0.5, "--untie-embeddings-and-output-weights"),
    (0.3, "--group-query-attention --num-query-groups 4", "--group-query-attention --num-query-groups 2"),
    (0.2, "--kv-channels 32", "--qk-layernorm", "--window-size 32,0", "--softmax-type learnable"),
    (
        0.5,
        "--attention-dropout 0.0 --hidden-dropout 0.0",
        "--init-method-std 0.01",
        "--attention-softmax-in-fp32",
    ),
    (0.5, "--min-lr 3e-5", "--weight-decay 0.1", "--weight-decay 0.0"),
    (0.1, "--start-weight-decay 0.01 --end-weight-decay 0.1 --weight-decay-incr-style cosine"),
    (0.4, "--adam-beta1 0.9 --adam-beta2 0.95", "--adam-eps 1e-6", "--clip-grad 0.0", "--optimizer sgd"),
    (0.1, "--decoupled-lr 1e-4 --decoupled-min-lr 1e-5"),
    (
        *(0.7, "--bf16", "--bf16", "--bf16 --grad-reduce-in-bf16", "--fp16", "--fp16 --loss-scale 4096"),
        "--fp16 --initial-loss-scale 65536 --loss-scale-window 500 --hysteresis 4 --min-loss-scale 2.0",
        *(
            "--bf16 --fp8-format hybrid --fp8-amax-history-len 1024",
            "--bf16 --fp8-format e4m3 --fp8-recipe tensorwise",
        ),
    ),
    (
        *(0.5, "--use-distributed-optimizer", "--overlap-grad-reduce", "--ddp-bucket-size 1000000"),
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    (
        *(
            0.3,
            "--recompute-activations",
            "--recompute-granularity selective --recompute-modules core_attn mlp",
        ),
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ),
    (
        *(0.2, "--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "--external-cuda-graph"),
        "--cuda-graph-impl transformer_engine --cuda-graph-modules attn mlp",
        "--no-check-for-nan-in-loss-and-grad --cuda-graph-impl local --cuda-graph-scope full_iteration",
    ),
    (
        0.3,
        "--attention-backend flash",
        "--no-masked-softmax-fusion",
        "--no-bias-gelu-fusion",
        "--no-bias-swiglu-fusion",
    ),
    (0.3, "--no-bias-dropout-fusion", "--cross-entropy-loss-fusion", "--calculate-per-token-loss"),
    (0.2, "--no-check-for-nan-in-loss-and-grad", "--no-persist-layer-norm", "--eod-mask-loss", "--seed 42"),
    (
        0.5,
        "--eval-interval 100 --eval-iters 10",
        "--save-interval 50 --save ckpt --load ckpt",
        "--log-interval 5",
    ),
    (0.1, "--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler"),
)
"""Probability, and the flags of which one group is then passed."""

EXPERTS = (
    (1.0, "--moe-router-topk 2", "--moe-router-topk 1 --moe-router-pre-softmax"),
    (
        0.5,
        "--moe-ffn-hidden-size 64",
        "--moe-grouped-gemm",
        "--moe-layer-freq 2",
        "--moe-layer-freq ([0]*2+[1]*2)",
    ),
    (
        *(0.5, "--moe-router-load-balancing-type none", "--moe-router-load-balancing-type sinkhorn"),
        "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2",
        "--moe-router-load-balancing-type aux_loss global_aux_loss --moe-aux-loss-coeff 1e-2 1e-3",
    ),
    (0.3, "--moe-token-dispatcher-type alltoall", "--moe-z-loss-coeff 1e-3", "--moe-router-dtype fp32"),
    (0.2, "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"),
)
LATENT = (
    (0.5, "--q-lora-rank 32", "--kv-lora-rank 16"),
    (0.4, "--qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16", "--rotary-scaling-factor 1.0"),
)


def command_line(seed: int) -> str:
    """Return flags of a run on 8 processes; Megatron-LM rejects some of them."""
    draw = random.Random(seed)
    hidden = draw.choice([64, 128, 256, 1024])
    words = [
        f"--num-layers {draw.choice([4, 8])} --hidden-size {hidden} --num-attention-heads {draw.choice([4, 8])}",
        f"--seq-length 128 --max-position-embeddings {draw.choice([128, 256])} --lr 3e-4 --mock-data",
        "--no-rope-fusion --no-gradient-accumulation-fusion --tokenizer-type NullTokenizer",
        draw.choice(
            ["--vocab-size 32000", "--vocab-size 131", "--vocab-size 5000 --make-vocab-size-divisible-by 64"]
        ),
        *([] if draw.random() < 0.7 else [f"--ffn-hidden-size {3 * hidden}"]),
        *length(draw),
        *layout(draw),
        *drawn(draw, CHOICES),
    ]
    kind = draw.random()
    if kind < 0.2:
        words += ["--num-experts 4", *drawn(draw, EXPERTS)]
    elif kind < 0.35:
        words += ["--multi-latent-attention --position-embedding-type rope", *drawn(draw, LATENT)]
    return " ".join(words)


def drawn(draw: random.Random, choices) -> list[str]:
    return [draw.choice(flags) for chance, *flags in choices if draw.random() < chance]


def layout(draw: random.Random) -> list[str]:
    tensor = draw.choice([[], [], ["--tensor-model-parallel-size 2"], ["--tensor-model-parallel-size 4"]])
    pipeline = ["--pipeline-model-parallel-size 2", "--num-layers-per-virtual-pipeline-stage 1"]
    return [
        *tensor,
        *(["--sequence-parallel"] if draw.random() < 0.5 else []),
        *pipeline[: draw.choice([0, 0, 0, 1, 2])],
        *draw.choice(
            [[], [], ["--context-parallel-size 2 --cp-comm-type a2a"], ["--context-parallel-size 2"]]
        ),
    ]


def length(draw: random.Random) -> list[str]:
    """Return batch sizes, the length of the training and the schedule."""
    batch = draw.choice([64, 128])
    steps = draw.choice([100, 1000])
    style = draw.choice([None, "cosine", "linear", "constant", "inverse-square-root", "WSD"])
    words = [f"--micro-batch-size {draw.choice([1, 2])} --global-batch-size {batch}"]
    unit, count = draw.choice(
        [("iters", steps), ("iters", steps), ("samples", steps * batch + draw.choice([0, 7]))]
    )
    words += [f"--train-{unit} {count}", *([] if style is None else [f"--lr-decay-style {style}"])]
    if unit == "samples":
        words += drawn(draw, [(0.5, "--rampup-batch-size 32 32 6400", "--rampup-batch-size 16 16 1000")])
    words += drawn(draw, [(0.4, f"--lr-decay-{unit} {count // 2}", f"--lr-decay-{unit} {2 * count}")])
    words += drawn(draw, [(0.6, f"--lr-warmup-{unit} {count // 10}", "--lr-warmup-fraction 0.013")])
    if style == "WSD":
        words += [
            f"--lr-wsd-decay-{unit} {count // 10} --lr-wsd-decay-style {draw.choice(['cosine', 'minus_sqrt'])}"
        ]
    return words
