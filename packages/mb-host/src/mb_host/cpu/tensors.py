"""Tensor factories and moves: tensors that are created on "cuda" or moved to it are on the CPU."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from mb_host.cpu.device import HOST, do_nothing, is_cuda_device

_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
# Return values of Tensor.type() on a GPU; optimizers group parameters by these names.
_CUDA_TYPE_NAMES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
    torch.float16: "torch.cuda.HalfTensor",
}


def on_host(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return `factory` with a CUDA `device` replaced by the CPU and without `pin_memory`, which initialises CUDA."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if is_cuda_device(kwargs.get("device")):
                kwargs["device"] = HOST
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return make


def _replace_factories() -> None:
    # The list also contains functions of other modules, such as torch.fft.
    constructors = _device_constructors()
    for name, function in list(vars(torch).items()):
        if callable(function) and function in constructors:
            setattr(torch, name, on_host(function))
    for name in _LIKE:
        setattr(torch, name, on_host(getattr(torch, name)))
    for name in _NEW:
        setattr(torch.Tensor, name, on_host(getattr(torch.Tensor, name)))


def _replace_moves() -> None:
    to, type_ = torch.Tensor.to, torch.Tensor.type

    def to_host(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and is_cuda_device(args[0]):
            args = (HOST, *args[1:])
        if is_cuda_device(kwargs.get("device")):
            kwargs["device"] = HOST
        return to(self, *args, **kwargs)

    def type_on_host(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return _CUDA_TYPE_NAMES.get(self.dtype) or type_(self)
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return type_(self, dtype, *args, **kwargs)

    tensor: Any = torch.Tensor
    tensor.to = to_host
    tensor.type = type_on_host
    tensor.cuda = lambda self, *_args, **_kwargs: self
    tensor.pin_memory = lambda self, *_args, **_kwargs: self
    tensor.record_stream = do_nothing()
    module: Any = torch.nn.Module
    module.cuda = lambda self, *_args, **_kwargs: self


def replace_tensors() -> None:
    """Replace torch's tensor factories, moves and type names.

    Wrapped factories work in every thread and cost 0.3 microseconds per call; a torch function mode works in one thread
    and costs four times as much. `.cuda()` returns the tensor itself, not a copy.
    """
    _replace_factories()
    _replace_moves()
