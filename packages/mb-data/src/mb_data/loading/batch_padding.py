"""Padding of samples of different lengths that a model's parallelism requires. Standard library only."""

from dataclasses import dataclass
from math import lcm
from typing import Protocol

QUANTIZED_BLOCK = 32
"""Maximum number of tokens that share a scale of FP8 or FP4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPadding:
    """Padding of samples of different lengths, in addition to the longest of their micro-batch."""

    to_max_length: bool = False
    """Pad to `seq_length`: pipeline stages and expert-parallel ranks exchange tensors of one size."""

    multiple: int = 1
    """Pad to a multiple of this number of tokens, as required by sequence splits and by kernels on blocks."""

    sequence_multiple: int = 1
    """Pad each sequence in a pack to a multiple of this number of tokens: context-parallel ranks split every one."""


NO_PADDING = BatchPadding()
"""Padding of a batch to its longest sample only."""


class PaddedModel(Protocol):
    """Fields of a model section that determine the padding."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Ranks over which layers are split."""

    @property
    def context_parallel_size(self) -> int:
        """Ranks over which sequences are split."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Pipeline stages."""

    @property
    def expert_model_parallel_size(self) -> int:
        """Ranks over which experts are distributed."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations are split by sequence over the tensor-parallel ranks."""

    @property
    def tp_comm_overlap(self) -> bool:
        """Whether tensor-parallel communication overlaps with computation, in buffers of one size."""

    @property
    def fp8(self) -> str | None:
        """FP8 format of the layers; None: none."""

    @property
    def fp4(self) -> str | None:
        """FP4 format of the layers; None: none."""


def required_padding(model: PaddedModel) -> BatchPadding:
    """Return the padding that the model's parallelism and precision require."""
    tp, cp = model.tensor_model_parallel_size, model.context_parallel_size
    slices = 2 * cp if cp > 1 else 1
    divisors = (
        slices,
        cp * tp if model.sequence_parallel else 1,
        cp * QUANTIZED_BLOCK if model.fp8 or model.fp4 else 1,  # each rank quantizes its own tokens
    )
    return BatchPadding(
        to_max_length=model.pipeline_model_parallel_size > 1
        or model.expert_model_parallel_size > 1
        or model.tp_comm_overlap,
        multiple=lcm(*divisors),
        sequence_multiple=slices,
    )
