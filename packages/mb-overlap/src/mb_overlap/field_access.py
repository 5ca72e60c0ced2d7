"""Access to fields of sections of any kind: dataclasses, namespaces, mappings.

Megatron-LM's command line has other names for a few fields of Megatron Core's configuration classes. A section that
only has the other name is read and written under that name.
"""

from argparse import Namespace
from collections.abc import Mapping, MutableMapping

OTHER_NAMES: Mapping[str, str] = {
    "bucket_size": "ddp_bucket_size",
    "num_buckets": "ddp_num_buckets",
    "num_moe_experts": "num_experts",
    "cuda_graph_modules": "cuda_graph_scope",
}
"""Field of Megatron Core to its name on Megatron-LM's command line or in older releases."""

PATHS_ON_THE_COMMAND_LINE = frozenset({"tp_comm_overlap_cfg"})
"""Fields that hold a path on Megatron-LM's command line and settings in a configuration class."""


def field_name(section: object, name: str) -> str | None:
    """Return the name under which a section has this field; None if it has no such field."""
    for candidate in (name, OTHER_NAMES.get(name, name)):
        if candidate in section if isinstance(section, Mapping) else hasattr(section, candidate):
            return candidate
    return None


def has_field(section: object, name: str) -> bool:
    """Return whether this field can be written to the section."""
    if isinstance(section, Namespace) and name in PATHS_ON_THE_COMMAND_LINE:
        return False
    return field_name(section, name) is not None


def read_field(section: object, name: str) -> object:
    """Return the value of a field; None if the section has no such field."""
    own = field_name(section, name)
    if own is None:
        return None
    return section[own] if isinstance(section, Mapping) else getattr(section, own)


def write_field(section: object, name: str, value: object) -> None:
    """Set a field that the section has."""
    own = field_name(section, name) or name
    if isinstance(section, MutableMapping):
        section[own] = value
    else:
        setattr(section, own, value)
