"""Program that imports torch and optional kernels, and prints what it found as JSON: `python -m mb_guard.probe`.

`doctor` runs it as a process of its own, so that an import that crashes or hangs is a finding and not the end.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mb_guard.fast_paths import FAST_PATHS, FastPath


def read_torch() -> dict[str, Any]:
    """Return the versions and devices that torch reports; only `error` where it cannot be imported."""
    try:
        torch = import_module("torch")
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        return {"error": f"{type(error).__name__}: {error}"}
    cuda = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if cuda
        else [],
        "architectures": torch.cuda.get_arch_list() if cuda else [],
        "capabilities": [
            "sm_{}{}".format(*torch.cuda.get_device_capability(index))
            for index in range(torch.cuda.device_count())
        ]
        if cuda
        else [],
    }


def import_errors(paths: Sequence[FastPath]) -> dict[str, str]:
    """Return, by id of a fast path, the error of its import; nothing for those that can be imported."""
    errors = {}
    for path in paths:
        try:
            module = import_module(path.module)
            for name in path.names:
                getattr(module, name)
        except Exception as error:  # noqa: BLE001 - a broken installation raises anything
            errors[path.id] = f"{type(error).__name__}: {error}".splitlines()[0]
    return errors


def main() -> None:
    """Print a JSON object; ids of fast paths to import are the arguments."""
    chosen = [path for path in FAST_PATHS if path.id in sys.argv[1:]]
    found = {"torch": read_torch(), "import_errors": import_errors(chosen)}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
