"""One gloo device for all process groups of a process.

torch gives each group a device of its own, with a thread that wakes up a hundred times a second although nothing
arrives. Megatron Core makes dozens of groups on each rank, so ranks that share a few cores spend them on it.
"""

import ctypes
import os
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_INTERFACES = "GLOO_SOCKET_IFNAME"
_devices: list[Any] = []


def share_gloo_device() -> None:
    """Let process groups of gloo that are made from now on share a device, and with it a thread.

    Groups on network interfaces that the variable GLOO_SOCKET_IFNAME names keep their own, as does a group with an
    argument that is not an option of gloo. A forked process makes a device of its own.
    """
    if not distributed_c10d.is_gloo_available() or isinstance(
        distributed_c10d.ProcessGroupGloo, _SharedDevice
    ):
        return
    original = distributed_c10d.ProcessGroupGloo
    distributed_c10d.ProcessGroupGloo = _SharedDevice("ProcessGroupGloo", (), {"original": original})  # type: ignore[assignment, misc]
    os.register_at_fork(after_in_child=_devices.clear)  # threads do not survive a fork


class _SharedDevice(type):
    """Metaclass: a call of its class returns a group of torch's `original` class, on the shared device."""

    original: type[Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.original)

    def __call__(cls, *members: Any, **settings: Any) -> Any:
        options = cls.original._Options()
        # torch passes store, rank and size, and settings that are options as well: the timeout, in newer releases more
        names = {name: "_timeout" if name == "timeout" else name for name in settings}
        is_known = len(members) == 3 and all(hasattr(options, name) for name in names.values())
        if os.environ.get(_INTERFACES) or not is_known:
            return cls.original(*members, **settings)
        if not _devices:
            device = cls.original.create_default_device()
            # never deleted: that would wait for the thread, which a forked process does not have
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
            _devices.append(device)
        options._devices, options._timeout = list(_devices), _DEFAULT_TIMEOUT
        for name, value in settings.items():
            setattr(options, names[name], value)
        return cls.original(*members, options)
