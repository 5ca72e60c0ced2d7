"""Functions that ranks run in tests of norms over modules."""

import math
from types import SimpleNamespace

import torch

from mb_metrics.norms.model import build_norms

PATHS = {"text": "language_model", "image": "submodules.vision"}


def norms_of(names, *, gradient=2.0, weight=1.0):
    """Return parameter norm and gradient norms of a model of which this rank holds the modules `names`."""
    wrapped = {}
    for name, size in (("text", 4), ("image", 9)):
        if name in names:
            linear = torch.nn.Linear(size, 1, bias=False)
            torch.nn.init.constant_(linear.weight, weight)
            linear.weight.grad = torch.full((1, size), gradient)
            wrapped[name] = torch.nn.ModuleDict({"module": linear}) if name == "text" else linear
    modules = SimpleNamespace(wrapped=wrapped, local_groups=dict.fromkeys(wrapped), paths=PATHS)
    norms = build_norms(SimpleNamespace(modules=modules))
    return norms.parameters(), norms.gradients(loss_scale=torch.tensor(2.0))


def norms_of_rank():
    """Return the norms with one module per rank."""
    return norms_of([("text", "image")[torch.distributed.get_rank()]])


def nan_norm_of_rank(rank):
    """Return whether both norms are NaN on this rank, with one module per rank and NaN in that of one rank."""
    own = torch.distributed.get_rank()
    value = math.nan if own == rank else 1.0
    parameters, gradients = norms_of([("text", "image")[own]], gradient=value, weight=value)
    return math.isnan(parameters), math.isnan(gradients["l2_norm/grad/global"])
