"""GPU names as users and drivers write them."""

import re
from collections.abc import Collection
from difflib import get_close_matches


class UnknownGpuError(ValueError):
    """A GPU name is not in the table."""


def find_short_name(text: str, known: Collection[str]) -> str | None:
    """Return the short name ("h100") of a GPU name as users or nvidia-smi write it, or None if it is unknown.

    "h100", "H100-SXM5-80GB" and "NVIDIA H100 80GB HBM3" are the same GPU. A MIG slice is not in the table, because it
    has only some of the GPU's units.
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    return None if "mig" in words else next((word for word in words if word in known), None)


def short_name(text: str, known: Collection[str], *, field: str = "gpu") -> str:
    """Return the short name of a GPU, as `find_short_name` does.

    Raises:
        UnknownGpuError: If the name is not known; the message contains the nearest ones.
    """
    found = find_short_name(text, known)
    if found is None:
        near = get_close_matches(text.lower(), known, n=3, cutoff=0.5) or list(known)
        raise UnknownGpuError(
            f"{field}: {text!r} is not a known GPU, so no rule can be checked for it. Use a name that nvidia-smi "
            f"prints, or a short name such as {', '.join(near)}."
        )
    return found
