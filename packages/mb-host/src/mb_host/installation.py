"""`install`: the one call that makes the host stand in for CUDA."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from mb_host.after_import import AfterImport
from mb_host.compile import replace_compile
from mb_host.device import replace_device
from mb_host.fsdp import STAND_INS as FSDP_STAND_INS
from mb_host.fsdp import replace_meshes
from mb_host.gpu_packages import hide_packages
from mb_host.kernels import STAND_INS
from mb_host.log_filters import quiet as apply_log_filters
from mb_host.mimo_bridge import STAND_INS as BRIDGE_STAND_INS
from mb_host.patches import ALL_PATCHES, callbacks, patch_megatron
from mb_host.random import replace_random
from mb_host.reproducibility import make_cpu_arithmetic_reproducible
from mb_host.streams import replace_streams
from mb_host.tensors import replace_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Whether the host stands in for CUDA in this process, and why; true exactly when it does."""

    active: bool
    reason: str

    def __bool__(self) -> bool:
        return self.active


class MegatronAlreadyImportedError(RuntimeError):
    """Megatron Core was imported before `install`, and has taken names from torch that can no longer be replaced."""


# A process has one torch, and what replaces its functions cannot be taken back: so there is one report to remember.
_reports: list[HostReport] = []


def install(*, force: bool = False, quiet: bool = True, patches: Iterable[str] = ALL_PATCHES) -> HostReport:
    """Make the host stand in for CUDA in this process, and say whether it does.

    To be called before `megatron` is imported, at the top of a module rather than under a main guard, so that
    spawned children do it too. Where there is a GPU, torch is left as it is, and `patch_megatron` applies those patches
    of Megatron Core that do not depend on a missing GPU. A second call changes nothing and returns the first call's
    report. Packages of GPU kernels (`mb_host.gpu_packages.GPU_PACKAGES`) can no longer be imported: where
    Transformer Engine is installed without a GPU, Megatron takes torch's optimizers and the host's layers.
    CPU arithmetic becomes reproducible (`mb_host.reproducibility.make_cpu_arithmetic_reproducible`), also with a GPU,
    because an optimizer may be offloaded to the CPU.

    Args:
        force: Use the host although there is a GPU; `torch.cuda.is_available()` then says False.
        quiet: Also silence the `LOG_FILTERS` of `mb_host.log_filters`.
        patches: Names of patches of Megatron Core, out of `mb_host.patches.ALL_PATCHES`. Each is applied when
            Megatron's module is imported; Megatron need not be installed. With a GPU, only those in
            `mb_host.patches.ANY_DEVICE_PATCHES` are applied.

    Raises:
        MegatronAlreadyImportedError: `megatron.core` is loaded already.
        ValueError: `mends` has an unknown name.
    """
    if _reports:
        return _reports[0]
    chosen = tuple(patches)
    after_import = AfterImport({**callbacks(chosen), **STAND_INS, **FSDP_STAND_INS, **BRIDGE_STAND_INS})
    if torch.cuda.is_available() and not force:
        patch_megatron(chosen)
        make_cpu_arithmetic_reproducible()
        report = HostReport(
            active=False, reason=f"a GPU is there ({torch.cuda.get_device_name()}), so torch is left as it is"
        )
    elif "megatron.core" in sys.modules:
        raise MegatronAlreadyImportedError(
            "mb_host.install: megatron.core is imported already, and holds functions of torch that must be replaced "
            "first; call mb_host.install() before the first import of megatron."
        )
    else:
        if quiet:
            apply_log_filters()
        hide_packages()
        _replace_torch()
        make_cpu_arithmetic_reproducible()
        sys.meta_path.insert(0, after_import)
        there = "force=True" if force else "no GPU is there"
        report = HostReport(active=True, reason=f"{there}, so the host stands in for CUDA")
    _reports.append(report)
    return report


def _replace_torch() -> None:
    replace_compile()
    replace_device()
    replace_streams()
    replace_random()
    replace_tensors()
    replace_meshes()
