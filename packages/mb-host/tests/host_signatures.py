"""Program: print which functions that `mb_host.install` replaces do not take the arguments of torch's."""

import inspect

import torch
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

OWNERS = (
    *(
        torch,
        torch.cuda,
        torch.cuda.random,
        torch.Tensor,
        torch.nn.Module,
        torch.cuda.Stream,
        torch.cuda.Event,
    ),
    *(DeviceMesh, distributed_c10d),
)


def functions():
    """Return the functions of torch by owner and name, at this moment."""
    owners = {owner.__name__: owner for owner in OWNERS}
    owners |= {"torch.cuda.Stream": torch.cuda.Stream, "torch.cuda.Event": torch.cuda.Event}
    return {
        (name, key): value
        for name, owner in owners.items()
        for key, value in vars(owner).items()
        if callable(value) and not isinstance(value, type)
    }


def arguments(function):
    """Return the arguments of torch's function, with one that a later release may add."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin, whose signature Python does not know
        return None
    named = [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]
    keywords = {each.name: None for each in parameters if each.kind == each.KEYWORD_ONLY}
    return [None for _ in named], {**keywords, "of_a_later_release": None}


before = {key: (value, arguments(value)) for key, value in functions().items()}

import mb_host  # noqa: E402 - torch's functions are recorded first

mb_host.install(force=True)
compared = 0
for key, value in functions().items():
    original, known = before.get(key, (value, None))
    if value is original or known is None:
        continue
    compared += 1
    try:
        inspect.signature(value, follow_wrapped=False).bind(*known[0], **known[1])
    except TypeError as error:
        print(key, error)
print(f"compared {compared}")
