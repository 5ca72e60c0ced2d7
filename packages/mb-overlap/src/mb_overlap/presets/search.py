"""Search for tuned settings by shape: the exact preset, or the nearest one with its distance."""

import warnings
from dataclasses import dataclass
from math import log2

from mb_overlap.config import TransformerLayerTPOverlapCfg
from mb_overlap.env_vars import GENERATIONS
from mb_overlap.presets.table import PRESETS, Preset
from mb_schema.gpu_names import short_name

_SIZES = ("hidden_size", "tp", "cp", "micro_batch_size", "seq_length")

PRECISIONS = {
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "torch.float8_e4m3fn": "fp8",
}
"""Name of a type -> precision of the presets."""

OTHER_PRECISION = 2.0
OTHER_GPU = 0.5
OTHER_GENERATION = 2.0
OTHER_LORA = 4.0
"""Distances of a preset that differs in one of these: as far as one whose sizes differ by 2 to that power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetMatch:
    """Preset, with its distance from the request."""

    preset: Preset
    """Nearest preset."""
    distance: float
    """Distance from the request; 0 for an exact match. See `find_preset`."""
    differences: tuple[str, ...]
    """Differences from the request, such as "seq_length 8192, not 4096"."""

    @property
    def exact(self) -> bool:
        """Whether the preset is tuned for exactly this request."""
        return not self.differences

    def build(self) -> TransformerLayerTPOverlapCfg:
        """Return the settings as a new object."""
        return self.preset.build()


def find_preset(
    *,
    precision: str,
    gpu: str,
    hidden_size: int,
    tp: int,
    micro_batch_size: int,
    seq_length: int,
    cp: int = 1,
    lora: bool = False,
) -> PresetMatch:
    """Return the preset tuned for this shape, or the nearest one. Ties resolve to the first row of the table.

    The distance is the sum of `abs(log2(ratio))` over the five sizes, plus 2 for another precision, 0.5 for another GPU
    of the same generation, 2 per generation of difference, and 4 for adapters against full training. It only ranks
    presets and does not measure speed; a distant preset still runs. A preset that is not an exact match comes with a
    warning that lists the differences.

    Args:
        precision: data type of the GEMMs: "bf16" or "fp8", or the name of the type, such as "torch.bfloat16".
        gpu: short name such as "h100", or the name printed by nvidia-smi.
        hidden_size: hidden size of the model.
        tp: number of ranks in the tensor-parallel group.
        micro_batch_size: number of sequences in a microbatch.
        seq_length: number of tokens in a sequence.
        cp: number of ranks in the context-parallel group.
        lora: whether only low-rank adapters are trained.

    Raises:
        UnknownGpuError: `gpu` is unknown.
        ValueError: `precision` is unknown, or a size is not positive.
    """
    precision = PRECISIONS.get(precision, precision)
    if precision not in ("bf16", "fp8"):
        raise ValueError(
            f"precision: {precision!r} is unknown, because presets are tuned for bf16 and fp8. Use one."
        )
    gpu = short_name(gpu, GENERATIONS)
    sizes = dict(zip(_SIZES, (hidden_size, tp, cp, micro_batch_size, seq_length), strict=True))
    for name, size in sizes.items():
        if not size >= 1:  # NaN too
            raise ValueError(
                f"{name}: {size} is not a valid size, because it is not positive. Set 1 or more."
            )
    matches = (_match(preset, sizes, precision, gpu, lora) for preset in PRESETS.values())
    best = min(matches, key=lambda match: match.distance)
    if not best.exact:
        warnings.warn(
            f"find_preset: no preset is tuned for this shape, and the nearest one, {best.preset.name}, is for "
            f"{'; '.join(best.differences)}. It runs, but its numbers of SMs and splits may be suboptimal.",
            stacklevel=2,
        )
    return best


def _match(preset: Preset, sizes: dict[str, int], precision: str, gpu: str, lora: bool) -> PresetMatch:
    """Return the distance of a preset from a model: powers of two between sizes, and what other differences cost."""
    tuned = {name: getattr(preset, name) for name in _SIZES}
    distance = sum(abs(log2(tuned[name] / size)) for name, size in sizes.items())
    differences = [f"{name} {tuned[name]}, not {size}" for name, size in sizes.items() if tuned[name] != size]
    if preset.precision != precision:
        distance += OTHER_PRECISION
        differences.append(f"{preset.precision}, not {precision}")
    if preset.gpu != gpu:
        generations = abs(GENERATIONS[preset.gpu] - GENERATIONS[gpu])
        distance += OTHER_GENERATION * generations or OTHER_GPU
        differences.append(f"{preset.gpu}, not {gpu}")
    if preset.lora != lora:
        distance += OTHER_LORA
        differences.append("adapters, not full training" if preset.lora else "full training, not adapters")
    return PresetMatch(preset=preset, distance=distance, differences=tuple(differences))
