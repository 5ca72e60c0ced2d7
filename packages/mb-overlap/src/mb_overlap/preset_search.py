"""Find the tuned settings for a shape: the exact ones, or the nearest with a stated distance."""

import warnings
from dataclasses import dataclass
from math import log2

from mb_overlap._gpu_names import short_name
from mb_overlap.config import TransformerLayerTPOverlapCfg
from mb_overlap.env_vars import GENERATIONS
from mb_overlap.presets import PRESETS, Precision, Preset

_SIZES = ("hidden_size", "tp", "cp", "micro_batch_size", "seq_length")

OTHER_PRECISION = 2.0
OTHER_GPU = 0.5
OTHER_GENERATION = 2.0
OTHER_LORA = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetMatch:
    """A preset, and how far it is from what was asked for."""

    preset: Preset
    """What was found."""
    distance: float
    """0 is exactly what was asked for; see `find_preset`."""
    differences: tuple[str, ...]
    """What it was tuned for instead, such as "seq_length 8192, not 4096"."""

    @property
    def exact(self) -> bool:
        """Whether it was tuned for exactly this."""
        return not self.differences

    def build(self) -> TransformerLayerTPOverlapCfg:
        """Return the settings, a new object each time."""
        return self.preset.build()


def find_preset(
    *,
    precision: Precision,
    gpu: str,
    hidden_size: int,
    tp: int,
    micro_batch_size: int,
    seq_length: int,
    cp: int = 1,
    lora: bool = False,
) -> PresetMatch:
    """Return the preset that was tuned for this, or else the nearest one; of equally near ones the first of the table.

    The distance is the sum over the five sizes of the doublings between them, plus 2 for the other precision, 0.5 for
    another GPU of the same generation, 2 for each generation between them, and 4 for adapters instead of full training
    or the other way round. It orders presets; it does not measure speed. Presets that are
    far away run all the same. A preset that was tuned for something else comes with a warning that names the
    differences.

    Args:
        precision: type of the GEMMs: "bf16" or "fp8".
        gpu: short name such as "h100", or as nvidia-smi prints it.
        hidden_size: width of the model.
        tp: ranks in the tensor-parallel group.
        micro_batch_size: sequences in a microbatch.
        seq_length: tokens in a sequence.
        cp: ranks in the context-parallel group.
        lora: whether only low-rank adapters train.

    Raises:
        UnknownGpuError: `gpu` is not known.
        ValueError: `precision` is not known, or a size is not positive.
    """
    if precision not in ("bf16", "fp8"):
        raise ValueError(
            f"precision: {precision!r} is unknown, because presets are tuned for bf16 and fp8. Use one."
        )
    gpu = short_name(gpu, GENERATIONS)
    sizes = dict(zip(_SIZES, (hidden_size, tp, cp, micro_batch_size, seq_length), strict=True))
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: {size} is no size, because it is not positive. Give 1 or more.")
    matches = (_match(each, sizes, precision, gpu, lora) for each in PRESETS.values())
    best = min(matches, key=lambda match: match.distance)
    if not best.exact:
        warnings.warn(
            f"find_preset: no preset is tuned for this, and the nearest one, {best.preset.name}, is for "
            f"{'; '.join(best.differences)}. It runs, but its numbers of multiprocessors and splits may not fit.",
            stacklevel=2,
        )
    return best


def _match(preset: Preset, sizes: dict[str, int], precision: str, gpu: str, lora: bool) -> PresetMatch:
    tuned = {name: getattr(preset, name) for name in _SIZES}
    distance = sum(abs(log2(tuned[name] / size)) for name, size in sizes.items())
    differences = [f"{name} {tuned[name]}, not {size}" for name, size in sizes.items() if tuned[name] != size]
    if preset.precision != precision:
        distance += OTHER_PRECISION
        differences.append(f"{preset.precision}, not {precision}")
    if preset.gpu != gpu:
        distance += _between(preset.gpu, gpu)
        differences.append(f"{preset.gpu}, not {gpu}")
    if preset.lora != lora:
        distance += OTHER_LORA
        differences.append("adapters, not full training" if preset.lora else "full training, not adapters")
    return PresetMatch(preset=preset, distance=distance, differences=tuple(differences))


def _between(tuned: str, requested: str) -> float:
    generations = abs(GENERATIONS[tuned] - GENERATIONS[requested])
    return OTHER_GPU if generations == 0 else OTHER_GENERATION * generations
