"""Rows that measure speed: a ladder of settings on four models, and other trainers on the same shapes."""

import json
import os
import shlex
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from first_run.machine import Machine
from first_run.row import BF16, ENGINE, LAYER_GRAPHS, WHOLE_GRAPH, Row, RowFailed, in_a_child

MEASURED, WARMUP = 20, 6
FIRST_STEPS, FIRST_DIFFERENCE, LARGEST_DIFFERENCE = 3, 0.01, 0.1
"""Relative differences to the losses of the row `perf`, in the first steps and later, above which a row of the ladder
fails: rounding grows with the steps."""
PEERS = Path(__file__).parent / "peers"
LIMIT = 120
"""Seconds that a row may take; on an H200 the longest took 40."""
LISTED = 15
"""Kernels of a table that the line of the row has; the file has all."""
SPLIT = "split-along-dim"
"""Fault of Megatron Core that makes attention concatenate the gradients of queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedShape:
    """Shape of a model and of its batch: GPT-2, Llama with an `ffn`, or that of another recipe."""

    name: str
    recipe: str = "gpt_350m"
    layers: int
    hidden: int
    heads: int
    seq_length: int
    vocab_size: int
    micro_batch_size: int
    global_batch_size: int
    ffn: int | None = None
    """Inner width of a gated MLP, in a model with RMSNorm, rotary positions, no biases and a separate output layer."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the recipe."""
        values: dict[str, Any] = {
            "model.num_layers": self.layers,
            "model.hidden_size": self.hidden,
            "model.num_attention_heads": self.heads,
            "model.seq_length": self.seq_length,
            "model.vocab_size": self.vocab_size,
            "tokenizer.vocab_size": self.vocab_size,
            "dataset.seq_length": self.seq_length,
            "train.micro_batch_size": self.micro_batch_size,
            "train.global_batch_size": self.global_batch_size,
        }
        if self.ffn is not None:
            values |= {**LLAMA, "model.ffn_hidden_size": self.ffn}
        return tuple(f"{name}={value}" for name, value in values.items())

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of a peer, see `peers/measured.py`."""
        values = {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "seq-length": self.seq_length,
            "vocab-size": self.vocab_size,
            "micro-batch-size": self.micro_batch_size,
            "global-batch-size": self.global_batch_size,
            **({} if self.ffn is None else {"ffn": self.ffn}),
        }
        return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


LLAMA: Mapping[str, Any] = {
    "model.normalization": "RMSNorm",
    "model.layernorm_epsilon": 1e-5,
    "model.gated_linear_unit": "true",
    "model.activation_func": "silu",
    "model.add_bias_linear": "false",
    "model.position_embedding_type": "rope",
    "model.share_embeddings_and_output_weights": "false",
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
}
LARGE = {"seq_length": 1024, "vocab_size": 50_304}
SMALL = SpeedShape(
    name="350m", layers=24, hidden=1024, heads=16, micro_batch_size=16, global_batch_size=32, **LARGE
)
"""GPT-2 medium, 355 million parameters."""
GPT_3 = SpeedShape(
    name="1300m", layers=24, hidden=2048, heads=16, micro_batch_size=8, global_batch_size=16, **LARGE
)
"""GPT-3 XL, 1.3 billion."""
LLAMA_SHAPE = SpeedShape(
    name="llama_1400m",
    layers=24,
    hidden=2048,
    heads=16,
    ffn=5632,
    seq_length=4096,
    vocab_size=32_000,
    micro_batch_size=2,
    global_batch_size=8,
)
"""1.36 billion parameters in the shape of Llama, four microbatches."""
EXPERTS = SpeedShape(
    name="moe_1b",
    recipe="moe_1b",
    layers=24,
    hidden=1024,
    heads=16,
    seq_length=4096,
    vocab_size=49_155,
    micro_batch_size=2,
    global_batch_size=8,
)
"""1.3 billion parameters, 400 million per token: 32 experts, 8 of them for a token."""
TINY = SpeedShape(
    name="tiny",
    layers=1,
    hidden=32,
    heads=2,
    seq_length=32,
    vocab_size=512,
    micro_batch_size=2,
    global_batch_size=4,
)
"""Shape of a dry run."""

COMMON = (
    "dataset.num_workers=2",
    "scheduler.lr_warmup_iters=2",
    "optimizer.lr=3e-5",
    "optimizer.min_lr=3e-6",
    "logger.log_interval=10",
    *BF16,
)
"""A larger learning rate diverges after so short a warm-up, and losses of a run that diverges cannot be compared."""
PLAIN = ("model.gradient_accumulation_fusion=false", "model.cross_entropy_fusion_impl=native")
FUSED = (
    "model.gradient_accumulation_fusion=true",
    "model.cross_entropy_loss_fusion=true",
    "model.cross_entropy_fusion_impl=te",
)
RANDOM = ("model.use_te_rng_tracker=true", "rng.te_rng_tracker=true")
WITHOUT_GRAPHS = ("model.cuda_graph_impl=none",)
FP8 = "mixed_precision=bf16_with_fp8_{}_scaling_mixed"
PERF = ("perf={gpu}",)
TE_ACTIVATION = ("model.bias_activation_fusion=false", "++model.transformer.use_te_activation_func=true")
OP_FUSER = ("++model.transformer.use_transformer_engine_op_fuser=true",)
SINGLE_ROPE = ("++model.transformer.fused_single_qkv_rope=true",)
RESIDUAL_NORM = ("model.fused_residual_rmsnorm=true",)
ONE_MICROBATCH = (f"train.micro_batch_size={LLAMA_SHAPE.global_batch_size}",)
"""The sequences of a step in one microbatch: its products add to the gradients once instead of four times."""
LADDER: Mapping[str, tuple[str, ...]] = {
    "perf": PERF,
    "perf_again": PERF,
    "layer_graphs": (*PERF, *LAYER_GRAPHS, *RANDOM),
    "te_activation": (*PERF, *TE_ACTIVATION),
    "op_fuser": (*PERF, *OP_FUSER),
    "concatenated_gradients": PERF,
    "eager": PLAIN,
    "fused": FUSED,
    "without_graphs": (*PERF, *WITHOUT_GRAPHS),
    "whole_graph": (*FUSED, *WHOLE_GRAPH, *RANDOM),
    "fp8_current": (*PERF, FP8.format("current")),
    "fp8_delayed": (*PERF, FP8.format("delayed")),
}
"""Steps of the ladder of GPT-2, those first that decide what `perf` sets. The first is what the others are compared
with: `perf` takes a graph of the whole step, so that each switch is measured under one. `perf_again` shows by how much
two equal rows differ."""
LLAMA_LADDER: Mapping[str, tuple[str, ...]] = {
    "perf": PERF,
    "perf_again": PERF,
    "one_microbatch": (*PERF, *ONE_MICROBATCH),
    "single_qkv_rope": (*PERF, *SINGLE_ROPE),
    "te_activation": (*PERF, *TE_ACTIVATION),
    "op_fuser": (*PERF, *OP_FUSER),
    "residual_rmsnorm": (*PERF, *RESIDUAL_NORM),
    "all_switches": (*PERF, *SINGLE_ROPE, *TE_ACTIVATION, *RESIDUAL_NORM),
    "fp8_current": (*PERF, FP8.format("current")),
    "fp8_delayed": (*PERF, FP8.format("delayed")),
    "layer_graphs": (*PERF, *LAYER_GRAPHS, *RANDOM),
    "concatenated_gradients": PERF,
    "without_graphs": (*PERF, *WITHOUT_GRAPHS),
}
"""The same for the shape of Llama."""
EXPERTS_LADDER: Mapping[str, tuple[str, ...]] = {
    "perf": PERF,
    "perf_again": PERF,
    "part_graphs": (
        *PERF,
        *LAYER_GRAPHS,
        "model.cuda_graph_modules=[attn,moe_router,moe_preprocess]",
        *RANDOM,
    ),
    "router_fusion": (*PERF, "model.moe_router_fusion=true"),
    "torch_permutation": (*PERF, "model.moe_permute_fusion=false"),
    "fp8_current": (*PERF, FP8.format("current")),
}
"""The same with experts, where `perf` takes no graphs on Hopper in BF16: the host waits for the counts of tokens."""
UNCORRECTED = {"concatenated_gradients": {"MB_GUARD": f"-{SPLIT}"}}
"""Steps whose environment leaves a fault of Megatron Core as it is."""
LADDERS = {
    LLAMA_SHAPE: LLAMA_LADDER,
    SMALL: LADDER,
    EXPERTS: EXPERTS_LADDER,
    GPT_3: {name: LADDER[name] for name in ("perf", "eager")},
}
DECISIVE = {
    SMALL: ("perf", "layer_graphs", "te_activation", "op_fuser"),
    LLAMA_SHAPE: (
        "perf",
        "one_microbatch",
        "single_qkv_rope",
        "te_activation",
        "op_fuser",
        "residual_rmsnorm",
    ),
    EXPERTS: ("perf", "part_graphs", "router_fusion"),
}
"""Steps of the ladder that decide what `perf` sets, and what a user may gain with the size of microbatches."""


def speed_rows(peers: Path | None = None) -> list[Row]:
    """Return the rows worth most: those that decide what `perf` sets, and the other trainers.

    Args:
        peers: A folder with further programs, each of which takes the arguments of `peers/measured.py`.
    """
    programs = [PEERS / "nanogpt.py", PEERS / "megatron_lm.py", *programs_of(peers)]
    bridge = [] if peers is None or not (peers / BRIDGE).is_file() else [bridge_row(peers)]
    gpt_only = {PEERS / "megatron_lm.py"}
    return [
        *(ladder_row(LLAMA_SHAPE, step) for step in DECISIVE[LLAMA_SHAPE]),
        kernels_row(LLAMA_SHAPE),
        *(ladder_row(SMALL, step, dry=step == "perf") for step in DECISIVE[SMALL]),
        kernels_row(SMALL),
        *(ladder_row(EXPERTS, step) for step in DECISIVE[EXPERTS]),
        kernels_row(EXPERTS),
        *bridge,
        *(peer_row(LLAMA_SHAPE, program) for program in programs if program not in gpt_only),
        *(peer_row(SMALL, program, dry=program.parent == PEERS) for program in programs),
        in_turn_row(),
    ]


def further_speed_rows(peers: Path | None = None) -> list[Row]:
    """Return the rows that confirm: the rest of the ladders, and the other trainers in the shape of GPT-3."""
    programs = [PEERS / "megatron_lm.py", PEERS / "nanogpt.py", *programs_of(peers)]
    return [
        *(
            ladder_row(shape, step)
            for shape, ladder in LADDERS.items()
            for step in ladder
            if step not in DECISIVE.get(shape, ())
        ),
        *(peer_row(GPT_3, program) for program in programs),
    ]


def programs_of(peers: Path | None) -> list[Path]:
    """Return the programs of a folder that measure themselves by `measure_steps`."""
    found = sorted(peers.glob("*.py")) if peers is not None else []
    return [program for program in found if "measure_steps" in program.read_text()]


def ladder_words(shape: SpeedShape, settings: Sequence[str], gpu: str) -> list[str]:
    """Return recipe and overrides of a step of the ladder."""
    return [shape.recipe, *shape.overrides, *COMMON, *(each.format(gpu=gpu) for each in settings)]


def ladder_row(shape: SpeedShape, step: str, *, dry: bool = False) -> Row:
    """Return a row that measures our own run; `dry`: also without a GPU, in a tiny shape."""
    row, settings = f"ladder.{shape.name}.{step}", LADDERS[shape][step]

    def command(machine: Machine) -> list[str]:
        run = ladder_words(shape, settings, "auto")
        if not machine.gpu:  # where there are no fast settings
            run = [*ladder_words(TINY, (), "auto"), "dataset.num_workers=0"]
        return [sys.executable, "-m", "mb_trainer", "bench", *run, *options_of(machine, row)]

    return Row(
        id=row,
        limit_seconds=LIMIT,
        command=command,
        environment=UNCORRECTED.get(step, {}),
        check=lambda machine: measured(machine, row, base=f"ladder.{shape.name}.perf"),
        needs=() if dry else ENGINE,
        settings=tuple(ladder_words(shape, settings, "h200")),
        alone=True,
    )


def kernels_row(shape: SpeedShape) -> Row:
    """Return a row with the kernels of the fast settings, and who waits for the GPU, in `kernels.json`."""
    row = f"kernels.{shape.name}.perf"

    def command(machine: Machine) -> list[str]:
        options = ["--kernels", "--steps=3", "--warmup=6", "--profiled=2", f"--out={machine.measured(row)}"]
        return [sys.executable, "-m", "mb_trainer", "bench", *ladder_words(shape, PERF, "auto"), *options]

    def check(machine: Machine) -> dict[str, Any]:
        table = json.loads((machine.measured(row) / "run-1" / "kernels.json").read_text())
        (machine.out / f"{row}.json").write_text(json.dumps(table, indent=1))
        return {**table, "kernels": table["kernels"][:LISTED]}

    return Row(
        id=row,
        limit_seconds=LIMIT,
        command=command,
        check=check,
        needs=ENGINE,
        settings=tuple(ladder_words(shape, PERF, "h200")),
        alone=True,
    )


IN_TURN = "in_turn.350m"
OF_PEER = (
    "model.gradient_accumulation_fusion=true",
    "model.cross_entropy_loss_fusion=true",
    "model.cross_entropy_fusion_impl=native",
    "model.bias_activation_fusion=true",
    "model.bias_dropout_fusion=true",
    "ddp.use_distributed_optimizer=true",
    "optimizer.use_distributed_optimizer=true",
    "ddp.grad_reduce_in_fp32=true",
    "train.manual_gc=true",
    "train.manual_gc_interval=100",
    "rerun_state_machine.check_for_nan_in_loss=false",
)
"""The switches of `peers/megatron_lm.py`, which takes no graphs."""


def in_turn_row() -> Row:
    """Return a row that measures our step and Megatron Core's `train_step` with equal switches, three times in turn."""

    def check(machine: Machine) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((machine.out / "in_turn.json").read_text())
        return {**found["run"], "against": found["against"], "ratios": found["ratios"]}

    return Row(
        id=IN_TURN,
        limit_seconds=300,
        command=in_a_child("in_turn"),
        check=check,
        needs=ENGINE,
        settings=tuple(ladder_words(SMALL, OF_PEER, "h200")),
        alone=True,
    )


def in_turn_child() -> dict[str, Any]:
    """Measure both, in turn."""
    from mb_metrics.bench.command import BenchPlan, measure
    from mb_trainer.commands.bench import bench_command

    ours = ladder_words(SMALL, OF_PEER, "auto")
    peer = [sys.executable, "-W", "ignore", str(PEERS / "megatron_lm.py"), *SMALL.arguments]
    return measure(
        [
            ("ours", lambda run, request: bench_command(ours, run, request)),
            ("megatron_lm", lambda run, request: peer),
        ],
        BenchPlan(steps=15, warmup=5, profiled=2, rounds=3),
        folder=Path(os.environ["FIRST_RUN_OUT"]) / "bench" / IN_TURN,
    )


BRIDGE, BRIDGE_SITE = "bench_bridge.py", "peers-site.tar.xz"


def bridge_row(peers: Path) -> Row:
    """Return a row of Megatron-Bridge in the shape of Llama, which measures itself and prints a line `RESULT {...}`.

    Args:
        peers: A folder with its program, and with the packages that it needs in addition to those of the machine.
    """
    row = f"peer.{LLAMA_SHAPE.name}.megatron_bridge"

    def command(machine: Machine) -> list[str]:
        site = machine.out / "peers-site"
        if (peers / BRIDGE_SITE).is_file() and not site.exists():
            with tarfile.open(peers / BRIDGE_SITE) as archive:
                archive.extractall(site, filter="data")
        run = f"PYTHONPATH={shlex.quote(str(site))}:$PYTHONPATH exec {shlex.quote(sys.executable)} -W ignore"
        return ["bash", "-c", f"{run} {shlex.quote(str(peers / BRIDGE))}"]

    def check(machine: Machine) -> dict[str, Any]:
        log = (machine.out / "logs" / f"{row}.txt").read_text(errors="replace")
        lines = [line.removeprefix("RESULT ") for line in log.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise RowFailed("printed no result")
        found = json.loads(lines[-1])
        return {
            "step_seconds": {"median": found["step_ms_median"] / 1000},
            "tokens_per_second": found["tokens_per_s"],
            "peak_memory_gib": found["peak_alloc_gib"],
            **{name: found[name] for name in ("loss", "attn_used", "params", "versions")},
        }

    return Row(
        id=row,
        limit_seconds=LIMIT,
        command=command,
        environment={"SIZE": "mid", "CE": "te", "RERUN": "disabled", "FIRST": "9", "LAST": "24"},
        check=check,
        needs=("gpu",),
        alone=True,
    )


def peer_row(shape: SpeedShape, program: Path, *, dry: bool = False) -> Row:
    """Return a row that measures another trainer in the same shape, by the same callback."""
    row = f"peer.{shape.name}.{program.stem}"

    def command(machine: Machine) -> list[str]:
        chosen = shape if machine.gpu else TINY
        run = [sys.executable, "-W", "ignore", str(program), *chosen.arguments]
        return [sys.executable, "-m", "mb_metrics", "bench", *options_of(machine, row), "--", *run]

    return Row(
        id=row,
        limit_seconds=LIMIT,
        command=command,
        check=lambda machine: measured(machine, row),
        needs=() if dry else ("gpu",),
        alone=True,
    )


def options_of(machine: Machine, row: str) -> list[str]:
    """Return the options of a measurement, which is short without a GPU."""
    steps, warmup, profiled = (MEASURED, WARMUP, 2) if machine.gpu else (3, 1, 1)
    numbers = {"steps": steps, "warmup": warmup, "profiled": profiled}
    return [
        *(f"--{name}={number}" for name, number in numbers.items()),
        f"--out={machine.measured(row)}",
    ]


def measured(machine: Machine, row: str, *, base: str | None = None) -> dict[str, Any]:
    """Return the result of a measurement, with the ratio to another row and the difference of the losses.

    Raises:
        RowFailed: A loss is not finite, did not fall, or differs from that of the other row.
    """
    found = result_of(machine, row)
    losses = found.losses
    values = {**found.as_json(), "losses": [round(loss, 4) for loss in losses]}
    if not losses or not all(loss < float("inf") for loss in losses):
        raise RowFailed(f"a loss is not finite: {values['losses']}")
    if machine.gpu and not losses[-1] < losses[0]:
        raise RowFailed(f"the loss did not fall: {values['losses']}")
    if base is None or base == row or not result_file(machine, base).exists():
        return values
    other = result_of(machine, base)
    apart = [abs(one - two) / two for one, two in zip(losses, other.losses, strict=False)]
    values |= {
        "times_perf": round((found.tokens_per_second or 0) / (other.tokens_per_second or 1), 3),
        "largest_difference": round(max(apart), 5),
    }
    for difference, limit in ((max(apart[:FIRST_STEPS]), FIRST_DIFFERENCE), (max(apart), LARGEST_DIFFERENCE)):
        if not difference <= limit:
            raise RowFailed(
                f"the losses are {difference:.1%} from those of {base}, above {limit:.0%} ({found.as_text()})"
            )
    return values


def result_file(machine: Machine, row: str) -> Path:
    """Return the file of a measurement."""
    return machine.measured(row) / "run-1" / "bench.json"


def result_of(machine: Machine, row: str) -> Any:
    """Return the result of a measurement, read by the package that has written it."""
    from mb_metrics.bench.result import BenchResult

    return BenchResult.from_dict(json.loads(result_file(machine, row).read_text()))
