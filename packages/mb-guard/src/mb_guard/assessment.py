"""What is to be done about each fault with the installed versions, found without importing a library."""

from collections.abc import Iterable, Mapping

from mb_guard.environment import Choice
from mb_guard.fault import Fault, Patch
from mb_guard.report import FaultStatus, State
from mb_guard.sources import installed_hash
from mb_guard.versions import installed_version, within


def installed_versions(faults: Iterable[Fault]) -> dict[str, str | None]:
    """Return the installed version of each library that a record names; None where it is not installed."""
    names = dict.fromkeys(name for fault in faults for name in fault.versions)
    return {name: installed_version(name) for name in names}


def assess(fault: Fault, choice: Choice, versions: Mapping[str, str | None]) -> FaultStatus:
    """Return what is to be done about a fault; `pending` where it is put right when its modules are imported."""
    if not choice.takes(fault.id):
        return FaultStatus(fault=fault, state="off", detail="by MB_GUARD")
    missing = [name for name in fault.versions if versions[name] is None]
    if missing:
        return FaultStatus(fault=fault, state="not installed", detail=", ".join(missing))
    outside = [
        f"{name} {version}, tested {bounds}"
        for name, bounds in fault.versions.items()
        if not within(version := versions[name] or "", bounds)
    ]
    if fault.action != "put right":
        state: State = "refused" if fault.action == "refuse" and choice.mode == "on" else "to know"
        return FaultStatus(
            fault=fault, state="other version" if outside else state, detail="; ".join(outside)
        )
    unknown = [line for patch in fault.patches if (line := _unknown_source(patch))]
    if unknown and outside:
        return FaultStatus(fault=fault, state="other version", detail="; ".join([*outside, *unknown]))
    if unknown:
        return FaultStatus(fault=fault, state="unknown source", detail="; ".join(unknown))
    return FaultStatus(fault=fault, state="to know" if choice.mode == "warn" else "pending")


def _unknown_source(patch: Patch) -> str | None:
    """Return the problem where the installed function is not one that the patch is made for."""
    if not patch.sources:
        return None
    found = installed_hash(patch.module, patch.target)
    if found in patch.sources:
        return None
    return f"{patch.module}.{patch.target} " + (
        "does not exist" if found is None else f"differs from the versions that are known (source {found})"
    )
