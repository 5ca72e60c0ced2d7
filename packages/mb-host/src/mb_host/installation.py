"""`install`: redirect CUDA calls of torch to the CPU on a machine without a GPU, and patch Megatron Core."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from mb_host.cpu.compile import replace_compile
from mb_host.cpu.device import replace_device
from mb_host.cpu.gloo_device import share_gloo_device
from mb_host.cpu.matrix_products import keep_large_blocks
from mb_host.cpu.random import replace_random
from mb_host.cpu.reproducibility import make_cpu_arithmetic_reproducible
from mb_host.cpu.signal_stack import use_signal_stack
from mb_host.cpu.streams import replace_streams
from mb_host.cpu.tensors import replace_tensors
from mb_host.deferred_imports import defer_import
from mb_host.gpu_packages import hide_packages
from mb_host.log_filters import quiet as apply_log_filters
from mb_host.megatron.fsdp import STAND_INS as FSDP_STAND_INS
from mb_host.megatron.fsdp import replace_meshes
from mb_host.megatron.grouped_experts import STAND_INS as EXPERT_STAND_INS
from mb_host.megatron.kernels import STAND_INS as KERNEL_STAND_INS
from mb_host.megatron.mimo_bridge import STAND_INS as BRIDGE_STAND_INS
from mb_host.megatron.patches import ALL_PATCHES, patch_callbacks
from mb_schema.import_hook import ImportHook


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Result of `install`. Its truth value is `active`."""

    active: bool
    """Whether CUDA calls run on the CPU in this process."""
    reason: str
    """Reason for the log, such as the name of the GPU."""

    def __bool__(self) -> bool:
        return self.active


class MegatronAlreadyImportedError(RuntimeError):
    """Megatron Core was imported before `install`, and references functions of torch that can no longer be replaced."""


# Replacing functions of torch is irreversible and affects the process, so there is one report per process.
_reports: list[HostReport] = []


def install(*, force: bool = False, quiet: bool = True, patches: Iterable[str] = ALL_PATCHES) -> HostReport:
    """Redirect CUDA calls of torch to the CPU unless this process has a GPU, and report whether they are redirected.

    Call it before `megatron` is imported, at the top of a module rather than under a main guard, so that spawned
    children call it too. A second call has no effect, whatever its arguments, and returns the report of the first call.

    Without a GPU: functions of torch are replaced. Modules of Megatron Core are patched when they are imported, and
    receive torch substitutes for GPU kernels. Packages of GPU kernels (`mb_host.gpu_packages.GPU_PACKAGES`) can no
    longer be imported, so that Megatron uses torch's optimizers and local layers even if Transformer Engine is
    installed. The memory of large tensors is reused (`keep_large_blocks`), process groups of gloo share a device
    (`cpu/gloo_device.py`), and signal handlers run on a separate stack (`cpu/signal_stack.py`).

    With a GPU: torch, these packages and Megatron Core are not changed.

    In both cases wandb, which Megatron Core imports, is loaded at its first use, and CPU arithmetic becomes
    reproducible (`make_cpu_arithmetic_reproducible`): with a GPU, an optimizer may be offloaded
    to the CPU.

    Args:
        force: Use the CPU even if there is a GPU; `torch.cuda.is_available()` then returns False.
        quiet: Also install `mb_host.log_filters.LOG_FILTERS`; without effect with a GPU.
        patches: Names of patches of Megatron Core, out of `mb_host.megatron.patches.ALL_PATCHES`. Each is applied when
            Megatron's module is imported; Megatron need not be installed. With a GPU, none is applied.

    Raises:
        MegatronAlreadyImportedError: torch must be changed, and `megatron.core` is already imported.
        ValueError: `patches` contains an unknown name.
    """
    if _reports:
        return _reports[0]
    defer_import("wandb")
    hook = ImportHook(
        after={
            **patch_callbacks(tuple(patches)),
            **KERNEL_STAND_INS,
            **EXPERT_STAND_INS,
            **FSDP_STAND_INS,
            **BRIDGE_STAND_INS,
        }
    )
    if torch.cuda.is_available() and not force:
        make_cpu_arithmetic_reproducible()
        report = HostReport(
            active=False,
            reason=f"a GPU is available ({torch.cuda.get_device_name()}), so torch is not changed",
        )
    else:
        report = _install_on_host(hook, quiet=quiet, cause="force=True" if force else "no GPU is available")
    _reports.append(report)
    return report


def _install_on_host(hook: ImportHook, *, quiet: bool, cause: str) -> HostReport:
    """Replace torch's CUDA calls, and patch modules of Megatron when they are imported.

    Raises:
        MegatronAlreadyImportedError: `megatron.core` is already imported; nothing is changed.
    """
    if "megatron.core" in sys.modules:
        raise MegatronAlreadyImportedError(
            "mb_host.install: megatron.core is already imported in this process, which has no GPU. It references "
            "functions of torch that must be replaced first. Put `import mb_host; mb_host.install()` at the top of "
            "the script, above its first import of megatron; in a script of mb-trainer, `import mb_trainer` there is "
            "enough. With a GPU the order of the imports does not matter."
        )
    if quiet:
        apply_log_filters()
    hide_packages()
    _replace_torch()
    make_cpu_arithmetic_reproducible()
    keep_large_blocks()
    use_signal_stack()
    share_gloo_device()
    sys.meta_path.insert(0, hook)
    return HostReport(active=True, reason=f"{cause}, so CUDA calls run on the CPU")


def _replace_torch() -> None:
    """Replace the functions of torch that call CUDA, which cannot be undone."""
    replace_compile()
    replace_device()
    replace_streams()
    replace_random()
    replace_tensors()
    replace_meshes()
