"""Table of tuned user-buffer settings by GPU and model shape.

`from mb_overlap import userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192` works for every name in `PRESETS`. Each
access builds a new object, so that modifying one does not affect another.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from mb_overlap.config import (
    BulkOverlapCfg,
    LayerOverlap,
    PipelineOverlapCfg,
    RingExchangeOverlapCfg,
    TransformerLayerTPOverlapCfg,
)
from mb_overlap.errors import OverlapError

Precision = Literal["bf16", "fp8"]

_TABLE = """
precision gpu  hidden tp cp mbs seq  tuning | qkv_dgrad qkv_wgrad fc1_dgrad fc1_wgrad | ring | proj  fc2
bf16      h100  8192  4  1  1   8192 full   | b4        b24       b2        b4        | r    | p24   p16
fp8       h100  8192  4  1  1   8192 full   | b4        b24       b2        b4        | r    | rm    rm
bf16      b200  8192  2  1  1   8192 full   | b16       b24       b2        b4        | r    | p32   p16
fp8       b200  8192  2  1  1   8192 full   | b4        b24       b2        b4        | r    | rm    rm
bf16      h100 16384  8  2  1   8192 full   | b2        b24       b2        b2        | r    | p24   p8
fp8       h100 16384  8  2  1   8192 full   | b2        b24       b2        b2        | r    | rm    rm
bf16      b200 16384  4  2  1   8192 full   | b8        b24       b2        b2        | r    | p32   p8
fp8       b200 16384  4  2  1   8192 full   | b8        b32       b2        b8        | r    | rm    rm
fp8       h100  8192  2  1  1   4096 lora   | b2        -         p16f      -         | rm   | rmfc  rmfc
fp8       h100 16384  4  1  1   2048 lora   | b2        -         p16f      -         | ra   | p32f  p16f
bf16      h100  6144  2  1  2   2048 full   | b8        b16       b4        b16       | r    | p16   p24
fp8       h100  6144  2  1  2   2048 full   | b8        b16       b4        b16       | r    | p16f  p24f
bf16      h100 12288  4  1  1   2048 full   | b4        b4        b2        b4        | r    | p24   rm
fp8       h100 12288  4  1  1   2048 full   | b4        b4        b2        b4        | r    | rm    rm
bf16      b200 12288  4  1  1   2048 full   | b4        b16       b2        b8        | r    | rm    rm
fp8       b200 12288  4  1  1   2048 full   | b4        b16       b2        b8        | r    | rm    rm
bf16      b200  6144  2  1  1   4096 full   | b8        b32       b2        b8        | r    | rm    rm
bf16      b200 18432  8  1  1   4096 full   | b8        b32       b2        b8        | r    | rm    p24
fp8       b200 18432  8  1  1   4096 full   | b8        b32       b2        b8        | r    | rm    rm
"""
# A cell is the entry of one GEMM: a letter for the method, the number of communication SMs, then flags.
#   b4     bulk: 4 SMs in clusters of 2, no SM margin
#   p24    pipeline: 24 SMs in clusters of 2, 4 splits, with SM margin
#   r      ring exchange: 1 SM, without clusters
#   flags  m: SM margin   f: FP8 buffer   a: aggregated   c: clusters of 2   (m and c only modify r)
#   -      this GEMM does not overlap
# `ring` is the entry of qkv_fprop, proj_dgrad, fc1_fprop and fc2_dgrad; `proj` and `fc2` are the forward passes.
# The first ten names are tuned for Llama 3 70B and 3.1 405B (the last two with LoRA), then GPT-3 20B and 175B,
# Nemotron 15B and Nemotron 340B.


class UnknownPresetError(OverlapError, KeyError):
    """No preset has this name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print its repr


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Tuned settings for one precision, GPU and model shape."""

    precision: Precision
    """Data type of the GEMMs."""
    gpu: str
    """GPU for which the settings are tuned: "h100" or "b200"."""
    hidden_size: int
    """Hidden size of the model."""
    tp: int
    """Number of ranks in the tensor-parallel group."""
    cp: int
    """Number of ranks in the context-parallel group."""
    micro_batch_size: int
    """Number of sequences in a microbatch."""
    seq_length: int
    """Number of tokens in a sequence."""
    lora: bool
    """Whether only low-rank adapters are trained."""
    cells: tuple[str, ...]
    """The seven cells of the row, in the order of the table."""

    @property
    def name(self) -> str:
        """Importable name, composed of the precision, the GPU and the shape."""
        ranks = f"tp{self.tp}_cp{self.cp}" if self.cp > 1 else f"tp{self.tp}"
        shape = f"h{self.hidden_size}_{ranks}_mbs{self.micro_batch_size}_seqlen{self.seq_length}"
        return f"userbuffers_{self.precision}_{self.gpu}_{shape}" + ("_lora" if self.lora else "")

    def build(self) -> TransformerLayerTPOverlapCfg:
        """Return the settings as a new object."""
        qkv_dgrad, qkv_wgrad, fc1_dgrad, fc1_wgrad, ring, proj, fc2 = self.cells
        return TransformerLayerTPOverlapCfg(
            qkv_dgrad=_entry(qkv_dgrad),
            qkv_wgrad=_entry(qkv_wgrad),
            fc1_dgrad=_entry(fc1_dgrad),
            fc1_wgrad=_entry(fc1_wgrad),
            qkv_fprop=_entry(ring),
            proj_dgrad=_entry(ring),
            fc1_fprop=_entry(ring),
            fc2_dgrad=_entry(ring),
            proj_fprop=_entry(proj),
            fc2_fprop=_entry(fc2),
        )


def _entry(cell: str) -> LayerOverlap | None:
    """Return the settings of a cell, whose notation is described below the table; None: the GEMM does not overlap."""
    method, sms, flags = re.findall(r"^([bpr-])(\d*)([acfm]*)$", cell)[0]
    if method == "b":
        return BulkOverlapCfg(num_sm=int(sms), cga_size=2, set_sm_margin=False)
    if method == "p":
        return PipelineOverlapCfg(
            num_sm=int(sms), cga_size=2, num_splits=4, set_sm_margin=True, fp8_buf="f" in flags
        )
    if method == "r":
        return RingExchangeOverlapCfg(
            aggregate="a" in flags,
            cga_size=2 if "c" in flags else 1,
            set_sm_margin="m" in flags,
            fp8_buf="f" in flags,
        )
    return None


def _row(line: str) -> Preset:
    """Parse a row of the table."""
    shape, *cells = (part.split() for part in line.split("|"))
    precision, gpu, *sizes, tuning = shape
    hidden_size, tp, cp, micro_batch_size, seq_length = map(int, sizes)
    return Preset(
        precision="bf16" if precision == "bf16" else "fp8",  # a literal for the type checker
        gpu=gpu,
        hidden_size=hidden_size,
        tp=tp,
        cp=cp,
        micro_batch_size=micro_batch_size,
        seq_length=seq_length,
        lora=tuning == "lora",
        cells=tuple(cell for part in cells for cell in part),
    )


PRESETS: dict[str, Preset] = {preset.name: preset for preset in map(_row, _TABLE.strip().splitlines()[1:])}
"""All presets by name."""


def preset(name: str) -> TransformerLayerTPOverlapCfg:
    """Return the settings of a preset as a new object.

    Raises:
        UnknownPresetError: no preset has this name; the message lists the closest names.
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=3) or list(PRESETS)
        raise UnknownPresetError(
            f"preset: {name!r} does not exist, because each preset is tuned for one shape. "
            f"Use {' or '.join(near)}."
        )
    return PRESETS[name].build()


def __getattr__(name: str) -> TransformerLayerTPOverlapCfg:
    """Make every preset importable by its name."""
    if name in PRESETS:
        return preset(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
