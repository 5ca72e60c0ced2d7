"""Rows that measure speed: a ladder of settings on two models, and other trainers on the same shapes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from first_run.machine import Machine
from first_run.row import BF16, ENGINE, LAYER_GRAPHS, WHOLE_GRAPH, Row, RowFailed

MEASURED, WARMUP = 30, 5
LARGEST_DIFFERENCE = 0.1
"""Relative difference to the loss of the row `eager` above which a row of the ladder fails."""
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedShape:
    """Shape of a GPT-2 model and of its batch."""

    name: str
    layers: int
    hidden: int
    heads: int
    seq_length: int
    vocab_size: int
    micro_batch_size: int
    global_batch_size: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the recipe gpt_350m."""
        values = {
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
        }
        return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


LARGE = {"seq_length": 1024, "vocab_size": 50_304}
SHAPES = (
    SpeedShape(
        name="350m", layers=24, hidden=1024, heads=16, micro_batch_size=16, global_batch_size=32, **LARGE
    ),
    SpeedShape(
        name="1300m", layers=24, hidden=2048, heads=16, micro_batch_size=8, global_batch_size=16, **LARGE
    ),
)
"""GPT-2 medium, 355 million parameters, and GPT-3 XL, 1.3 billion; two microbatches in a step."""
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

COMMON = ("dataset.num_workers=2", "scheduler.lr_warmup_iters=2", "logger.log_interval=10", *BF16)
PLAIN = ("model.gradient_accumulation_fusion=false", "model.cross_entropy_fusion_impl=native")
FUSED = (
    "model.gradient_accumulation_fusion=true",
    "model.cross_entropy_loss_fusion=true",
    "model.cross_entropy_fusion_impl=te",
)
RANDOM = ("model.use_te_rng_tracker=true", "rng.te_rng_tracker=true")
LADDER: Mapping[str, tuple[str, ...]] = {
    "eager": PLAIN,
    "fused": FUSED,
    "perf": ("perf={gpu}",),
    "fp8_current": (*FUSED, "mixed_precision=bf16_with_fp8_current_scaling_mixed"),
    "layer_graphs": (*FUSED, *LAYER_GRAPHS, *RANDOM),
    "whole_graph": (*FUSED, *WHOLE_GRAPH, *RANDOM),
    "fp8_delayed": (*FUSED, "mixed_precision=bf16_with_fp8_delayed_scaling_mixed"),
    "fp8_layer_graphs": (
        *FUSED,
        *LAYER_GRAPHS,
        *RANDOM,
        "mixed_precision=bf16_with_fp8_current_scaling_mixed",
    ),
}
"""Steps of the ladder, in order of worth. The first is what the others are compared with."""


WORTH_MOST = ("eager", "fused", "perf", "fp8_current")
"""Steps of the ladder that the larger model takes before anything else but speed is measured."""


def speed_rows(peers: Path | None = None) -> list[Row]:
    """Return the rows worth most: the whole ladder of the smaller model, a part of that of the larger one, and peers.

    Args:
        peers: A folder with further programs, each of which takes the arguments of `peers/measured.py`.
    """
    small, large = SHAPES
    programs = [PEERS / "megatron_lm.py", PEERS / "nanogpt.py"]
    programs += sorted(peers.glob("*.py")) if peers is not None else []
    return [
        *(ladder_row(small, step, dry=step == "eager") for step in LADDER),
        *(peer_row(small, program, dry=True) for program in programs),
        *(ladder_row(large, step) for step in WORTH_MOST),
        *(peer_row(large, program) for program in programs),
    ]


def further_speed_rows() -> list[Row]:
    """Return the other rows of the ladder of the larger model."""
    return [ladder_row(SHAPES[1], step) for step in LADDER if step not in WORTH_MOST]


def ladder_row(shape: SpeedShape, step: str, *, dry: bool = False) -> Row:
    """Return a row that measures our own run; `dry`: also without a GPU, in a tiny shape."""
    row, settings = f"ladder.{shape.name}.{step}", LADDER[step]

    def words(chosen: SpeedShape, gpu: str) -> list[str]:
        return ["gpt_350m", *chosen.overrides, *COMMON, *(each.format(gpu=gpu) for each in settings)]

    def command(machine: Machine) -> list[str]:
        chosen = shape if machine.gpu else TINY
        run = words(chosen, "auto") if machine.gpu else [*words(chosen, "auto"), "dataset.num_workers=0"]
        return [sys.executable, "-m", "mb_trainer", "bench", *run, *options_of(machine, row)]

    return Row(
        id=row,
        limit_seconds=240,
        command=command,
        check=lambda machine: measured(machine, row, eager=f"ladder.{shape.name}.eager"),
        needs=() if dry else ENGINE,
        settings=tuple(words(shape, "h200")),
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
        limit_seconds=240,
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


def measured(machine: Machine, row: str, *, eager: str | None = None) -> dict[str, Any]:
    """Return the result of a measurement, with the ratio to the row `eager` and the difference of the losses.

    Raises:
        RowFailed: A loss is not finite, did not fall, or differs from that of the row `eager`.
    """
    found = result_of(machine, row)
    losses = found.losses
    values = {**found.as_json(), "losses": [round(loss, 4) for loss in losses]}
    if not losses or not all(loss < float("inf") for loss in losses):
        raise RowFailed(f"a loss is not finite: {values['losses']}")
    if machine.gpu and not losses[-1] < losses[0]:
        raise RowFailed(f"the loss did not fall: {values['losses']}")
    if eager is None or eager == row or not result_file(machine, eager).exists():
        return values
    other = result_of(machine, eager)
    apart = max(abs(one - two) / two for one, two in zip(losses, other.losses, strict=False))
    values |= {
        "times_eager": round((found.tokens_per_second or 0) / (other.tokens_per_second or 1), 3),
        "largest_difference": round(apart, 5),
    }
    if not apart <= LARGEST_DIFFERENCE:
        raise RowFailed(
            f"the losses are {apart:.1%} from those of {eager}, above {LARGEST_DIFFERENCE:.0%} ({found.as_text()})"
        )
    return values


def result_file(machine: Machine, row: str) -> Path:
    """Return the file of a measurement."""
    return machine.measured(row) / "run-1" / "bench.json"


def result_of(machine: Machine, row: str) -> Any:
    """Return the result of a measurement, read by the package that has written it."""
    import json

    from mb_metrics.bench.result import BenchResult

    return BenchResult.from_dict(json.loads(result_file(machine, row).read_text()))
