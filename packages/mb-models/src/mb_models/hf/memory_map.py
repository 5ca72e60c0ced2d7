"""Memory-mapped parameters, which the operating system can evict from memory."""

from collections.abc import Iterable
from pathlib import Path

import torch


@torch.no_grad()
def memory_map_parameters(modules: Iterable[torch.nn.Module], folder: Path) -> None:
    """Replace the parameters of modules on the host by zeros in memory-mapped files; a shared parameter stays shared.

    The files must outlive the modules. They occupy as much disk space as the parameters have bytes.
    """
    for module_number, module in enumerate(modules):
        for number, parameter in enumerate(module.parameters()):
            path = folder / f"{module_number}-{number}.weights"
            flat = torch.from_file(str(path), shared=True, size=parameter.numel(), dtype=parameter.dtype)
            parameter.data = flat.view(parameter.shape)
