"""`install`: correct known faults in this process, and report those that cannot be corrected."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

from mb_guard.catalogue import FAULTS, find_fault
from mb_guard.config_checks import CONFIG_CLASSES, ConfigCheck
from mb_guard.errors import UnknownFaultError
from mb_guard.fault import Fault, Patch
from mb_guard.report import FaultStatus, GuardReport, State
from mb_guard.sources import installed_hash
from mb_guard.targets import Target, find_copies
from mb_guard.versions import installed_version, within
from mb_schema.import_hook import ImportHook

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def is_first_rank(environment: Mapping[str, str]) -> bool:
    """Return whether this process is rank 0, by the first variable of a launcher that is set."""
    ranks = [environment[name] for name in _RANK_VARIABLES if name in environment]
    return not ranks or ranks[0] == "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Choice of what is done, from MB_GUARD."""

    mode: Literal["on", "warn", "off"] = "on"
    only: frozenset[str] = frozenset()
    """Ids of the only faults that are guarded; empty: all."""
    without: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environment: Mapping[str, str], known: Collection[str]) -> "Choice":
        """Read MB_GUARD: `on` (or unset), `warn`, `off`, or ids separated by commas, `-ID` for all but that one.

        Args:
            environment: environment variables.
            known: ids of the faults.

        Raises:
            UnknownFaultError: MB_GUARD names a fault that does not exist.
        """
        text = environment.get("MB_GUARD", "").strip()
        if text in ("", "on", "off", "warn"):
            return cls(mode=text or "on")  # type: ignore[arg-type]
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name.removeprefix("-") not in known:
                raise UnknownFaultError(
                    f"MB_GUARD={text}: there is no fault {name.removeprefix('-')}. "
                    f"Choose off, warn, or from {', '.join(sorted(known))}."
                )
        return cls(
            only=frozenset(name for name in names if not name.startswith("-")),
            without=frozenset(name[1:] for name in names if name.startswith("-")),
        )

    def takes(self, fault: str) -> bool:
        """Return whether a fault is guarded."""
        return self.mode != "off" and fault not in self.without and (not self.only or fault in self.only)


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
    source = installed_hash(patch.module, patch.target)
    if source in patch.sources:
        return None
    return f"{patch.module}.{patch.target} " + (
        "does not exist" if source is None else f"differs from the versions that are known (source {source})"
    )


class Guard:
    """Corrections of some faults in this process.

    1. `assess` decides about each fault from the installed versions and the source files, without an import.
    2. The patches of a module are applied when it is imported, or at once.
    3. Configuration objects are checked when they are created (`config_checks`).
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        environment: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        choice = Choice.read(environment, {fault.id for fault in faults})
        self.mode = choice.mode
        self.versions = installed_versions(faults)
        self.statuses = {fault.id: assess(fault, choice, self.versions) for fault in faults}
        self._report = report
        self._targets: dict[tuple[str, str], Target] = {}
        self._disabled: list[str] = []
        self._names: dict[str, int] = {}
        """Number of names in each module when copies were last searched in all."""

    def apply(self) -> None:
        """Patch and check the modules that are imported already, and the others after their import."""
        for status in self.statuses.values():
            if status.state == "unknown source":
                self._report(f"mb_guard: {status.fault.id} is not put right: {status.detail}")
        patches: dict[str, list[tuple[str, Patch]]] = {}
        for fault in self._faults_in("pending"):
            for patch in fault.patches:
                patches.setdefault(patch.module, []).append((fault.id, patch))
        check = ConfigCheck(
            self._faults_in("refused", "to know"), refuse=self.mode == "on", report=self._report
        )
        checked = CONFIG_CLASSES if check.faults else ()

        def complete(module: ModuleType) -> None:
            # only modules of its own package can have copied names of a module that has just been imported
            package = module.__name__.partition(".")[0]
            self._patch([module], patches, [each for name, each in _modules() if name.startswith(package)])
            if module.__name__ in checked:
                check.watch(module)

        missing = dict.fromkeys((*patches, *checked), complete)
        imported = [sys.modules[name] for name in missing if name in sys.modules]
        self._patch(imported, patches, [each for _, each in _modules()])
        for module in imported:
            if module.__name__ in checked:
                check.watch(module)
            missing.pop(module.__name__)
        if missing:
            sys.meta_path.insert(0, ImportHook(after=missing))

    def _faults_in(self, *states: State) -> list[Fault]:
        return [status.fault for status in self.statuses.values() if status.state in states]

    def _patch(
        self,
        modules: Iterable[ModuleType],
        patches: Mapping[str, Sequence[tuple[str, Patch]]],
        others: Iterable[ModuleType],
    ) -> None:
        """Apply the patches of modules, whose names other modules may have copied."""
        targets = {
            id(target): target
            for module in modules
            for fault, patch in patches.get(module.__name__, ())
            if (target := self._target(module, fault, patch)) is not None
        }
        find_copies(targets.values(), others)
        for target in targets.values():
            target.compose(self._disabled)

    def _target(self, module: ModuleType, fault: str, patch: Patch) -> Target | None:
        """Return the target with the patch added; None if it is not to be applied here."""
        if patch.needed is not None and not patch.needed(module):
            if self.statuses[fault].state == "pending":
                self._set_state(fault, "not needed")
            return None
        key = (patch.module, patch.target)
        target = self._targets.get(key) or Target.find(module, patch.target)
        if target is None or (patch.sources and not target.is_from(module.__file__)):
            detail = f"{'.'.join(key)} has been replaced by another library"
            self._set_state(fault, "unknown source", detail)
            self._report(f"mb_guard: {fault} is not put right: {detail}")
            return None
        target.patches.append((fault, patch))
        self._targets[key] = target
        self._set_state(fault, "put right")
        return target

    def _set_state(self, fault: str, state: State, detail: str = "") -> None:
        self.statuses[fault] = replace(self.statuses[fault], state=state, detail=detail)

    def report(self) -> GuardReport:
        """Return what is done about each fault, by now."""
        return GuardReport(versions=dict(self.versions), statuses=tuple(self.statuses.values()))

    @contextmanager
    def without(self, *ids: str) -> Iterator[None]:
        """Take the corrections of faults out within the `with` block, in all threads."""
        self._disabled.extend(ids)
        self._compose(ids)
        try:
            yield
        finally:
            for id in ids:
                self._disabled.remove(id)
            self._compose(ids)

    def _compose(self, ids: Sequence[str]) -> None:
        affected = [
            target for target in self._targets.values() if any(fault in ids for fault, _ in target.patches)
        ]
        if any(isinstance(target.owner, ModuleType) for target in affected):
            modules = _modules()
            grown = [module for name, module in modules if self._names.get(name) != len(vars(module))]
            find_copies(self._targets.values(), grown)
            self._names = {name: len(vars(module)) for name, module in modules}
        for target in affected:
            target.compose(self._disabled)


def _modules() -> list[tuple[str, ModuleType]]:
    """Return all modules by name; libraries put other objects among them."""
    return [(name, each) for name, each in [*sys.modules.items()] if isinstance(each, ModuleType)]


# Replacing functions affects the whole process, so there is one guard per process.
_installed: list[Guard] = []


def install(*, quiet: bool = False, environment: Mapping[str, str] | None = None) -> GuardReport:
    """Correct known faults of Megatron Core and its neighbours in this process, and return what is done about each.

    Call it before or after megatron is imported: modules that are imported already are corrected at once, others right
    after their import. Nothing is imported here. A second call has no effect and returns the state at that time.

    The variable MB_GUARD chooses: `off`; `warn`, which corrects nothing and reports instead of refusing; or ids of
    faults separated by commas, which alone are guarded; `-ID` leaves one out.

    Args:
        quiet: do not print the line that counts the faults. Functions that are not known are reported all the same.
        environment: environment variables; those of this process by default.

    Raises:
        UnknownFaultError: MB_GUARD names a fault that does not exist.
    """
    if not _installed:
        variables = os.environ if environment is None else environment
        report = _print if is_first_rank(variables) else _ignore
        guard = Guard(FAULTS, environment=variables, report=report)
        _installed.append(guard)
        guard.apply()
        if not quiet:
            report(guard.report().line())
    return _installed[0].report()


def status() -> GuardReport:
    """Return what `install` did about each fault by now; without `install`, what it would do in this environment."""
    guard = _installed[0] if _installed else Guard(FAULTS, environment=os.environ, report=_ignore)
    return guard.report()


@contextmanager
def without(*ids: str) -> Iterator[None]:
    """Take the corrections of faults out within the `with` block, in all threads; for tests.

    A correction that is made in the block, when a module is imported, is left out until its end as well.

    Raises:
        UnknownFaultError: there is no fault of that id.
    """
    for id in ids:
        find_fault(id)
    if not _installed:
        yield
        return
    with _installed[0].without(*ids):
        yield


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")


def _ignore(line: str) -> None:
    """Print nothing: another rank prints the line."""
