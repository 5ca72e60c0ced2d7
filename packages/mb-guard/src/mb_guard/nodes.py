"""Differences between the nodes of a job, from the diagnoses of each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mb_guard.doctor import Finding

_OWN = ("machine.host", "machine.free_gib", "gpus.*.used_mib", "gpus.*.clock_mhz", "gpus.*.temperature")
"""Facts that may differ between nodes; `*` is any index."""
_LEFT_OUT = ("findings", "verdict")


def differences(nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding for each fact that differs between the diagnoses (`doctor.as_data`) of nodes."""
    facts = [dict(_leaves(node)) for node in nodes]
    hosts = [node["machine"]["host"] for node in nodes]
    names = dict.fromkeys(name for each in facts for name in each if not _is_own(name))
    found = {name: [each.get(name) for each in facts] for name in names}
    return [
        Finding(level="problem", about=name, text=f"differs between nodes: {_who_has_what(values, hosts)}")
        for name, values in found.items()
        if any(value != values[0] for value in values)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            if path or name not in _LEFT_OUT:
                yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}.{index}")
    else:
        yield path, value


def _is_own(name: str) -> bool:
    return ".".join("*" if part.isdigit() else part for part in name.split(".")) in _OWN


def _who_has_what(values: Sequence[Any], hosts: Sequence[str]) -> str:
    """Return each value with the hosts that have it, the rarest first: `2.10.0 on b; 2.11.0 on a, c and 3 others`."""
    groups: dict[str, list[str]] = {}
    for value, host in zip(values, hosts, strict=True):
        groups.setdefault("nothing" if value is None else str(value), []).append(host)
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))
    return "; ".join(f"{value} on {_listed(where)}" for value, where in ordered)


def _listed(hosts: Sequence[str], shown: int = 4) -> str:
    more = len(hosts) - shown
    return ", ".join(hosts[:shown]) + (f" and {more} others" if more > 0 else "")
