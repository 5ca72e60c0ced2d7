"""Parameters that live in files: the system moves them out of memory when it needs room."""

from collections.abc import Iterable
from pathlib import Path

import torch


@torch.no_grad()
def memory_map_parameters(modules: Iterable[torch.nn.Module], folder: Path) -> None:
    """Put the parameters of modules on the host into files, of content 0; a shared parameter stays shared.

    The files must outlive the modules. They take as much disk as the parameters have bytes.
    """
    for module_number, module in enumerate(modules):
        for number, parameter in enumerate(module.parameters()):
            path = folder / f"{module_number}-{number}.weights"
            flat = torch.from_file(str(path), shared=True, size=parameter.numel(), dtype=parameter.dtype)
            parameter.data = flat.view(parameter.shape)
