"""Tensors that hold all experts of a layer, as GPT-OSS has them, in bfloat16 or in MXFP4."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from mb_models.hf.family import TensorOrigin
from mb_models.hf.safetensors_files import TensorFolder

BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the two tensors of MXFP4: pairs of 4-bit numbers, and an exponent for 32 of them."""
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


def stacked_tensors(stored: TensorFolder, origin: TensorOrigin) -> list[str]:
    """Return the names under which a folder holds a stacked tensor: the tensor, or its blocks and scales."""
    (name,) = origin.tensors
    quantized = [name + suffix for suffix in (BLOCKS, SCALES)]
    return quantized if quantized[0] in stored.names() else [name]


def read_expert(
    stored: TensorFolder, origin: TensorOrigin, *, rank: int, size: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Read a tensor-parallel rank's parts of one expert, with outputs as rows; gate and up projection are two parts."""
    first, stop = origin.expert, origin.expert + 1
    tensors = [
        stored.part(name, split=0, start=first, stop=stop)[0] for name in stacked_tensors(stored, origin)
    ]
    # A weight that is not quantized has its outputs as columns; a bias is equal to its transpose.
    stacked = tensors[0].t() if len(tensors) == 1 else dequantize(*tensors, dtype=dtype)
    parts = [stacked[0::2], stacked[1::2]] if origin.form == "glu" else [stacked]
    if origin.split is None:
        return parts
    return [part.chunk(size, dim=origin.split)[rank] for part in parts]


def dequantize(blocks: torch.Tensor, scales: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix from MXFP4, [rows, groups, 16] bytes and [rows, groups] exponents; low bits come first."""
    table = torch.tensor([*_FP4, *(-value for value in _FP4)], dtype=torch.float32)
    pairs = torch.stack([table[(blocks & 15).long()], table[(blocks >> 4).long()]], dim=-1).flatten(2)
    exponents = scales.to(torch.int32) - _EXPONENT_BIAS
    return torch.ldexp(pairs, exponents[..., None]).flatten(1).to(dtype)


@dataclass(slots=True)
class ExpertStacks:
    """Experts of a complete model that are waiting for the others of their tensor. Holds the experts of one layer."""

    count: int
    """Experts of a layer."""
    _held: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def add(self, origin: TensorOrigin, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Add one expert's parameter; yield name and tensor of a complete stack."""
        (name,) = origin.tensors
        value = torch.stack(parameter.chunk(2), dim=1).flatten(0, 1) if origin.form == "glu" else parameter
        held = self._held.setdefault(name, [])
        held.append(value.t().contiguous())
        if len(held) == self.count:
            yield name, torch.stack(self._held.pop(name))
