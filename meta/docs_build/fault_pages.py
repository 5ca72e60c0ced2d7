"""Page of the known faults of Megatron Core and its neighbours, from the records of mb-guard."""

from collections.abc import Iterator

from mb_guard import FAULTS
from mb_guard.fast_paths import FAST_PATHS
from mb_guard.fault import Fault
from mb_guard.versions import VERSION_PAIRS

CODE = "https://github.com/"


def fault_pages() -> dict[str, str]:
    """Return the page."""
    return {"reference/faults.md": "\n".join([*fault_lines(), *pair_lines(), *fast_path_lines(), ""])}


def fault_lines() -> Iterator[str]:
    """Yield the table of all faults, then each with how it shows."""
    yield from (
        "# Known faults",
        "",
        "Faults of Megatron Core, Transformer Engine and their neighbours that [mb-guard](../packages/mb-guard.md)",
        f"knows: {len(FAULTS)}. `mb_guard.install()` corrects, refuses or reports them; `mb-guard doctor` lists those",
        "that apply here, `mb-guard check train.sh` those that a command line meets. Each has a test that fails",
        "without the guard.",
        "",
        "| fault | effect | versions | action | report |",
        "|---|---|---|---|---|",
    )
    for fault in FAULTS:
        report = (
            f"[{fault.report.partition(CODE)[2] or fault.report}]({fault.report})" if fault.report else ""
        )
        yield f"| [`{fault.id}`](#{fault.id}) | {fault.effect} | {versions(fault)} | {fault.action} | {report} |"
    for fault in FAULTS:
        yield from (
            "",
            f"## `{fault.id}` {{#{fault.id}}}",
            "",
            text(fault.summary),
            "",
            text(fault.shows),
            *(["", text(fault.advice)] if fault.advice else []),
            "",
            f"Test: `{fault.test.rpartition('/')[2]}`.",
        )


def versions(fault: Fault) -> str:
    """Return the tested bounds."""
    return ", ".join(f"{name} {bounds.replace(',', ', ')}" for name, bounds in fault.versions.items())


def pair_lines() -> Iterator[str]:
    """Yield the table of versions that do not work together."""
    yield from (
        "",
        "## Versions that do not work together",
        "",
        "| versions | problem | fix |",
        "|---|---|---|",
    )
    for pair in VERSION_PAIRS:
        names = ", ".join(f"{name} {bounds}" for name, bounds in pair.bounds.items())
        yield f"| {names} | {text(pair.problem)} | {text(pair.fix)} |"


def fast_path_lines() -> Iterator[str]:
    """Yield the table of names that Megatron Core imports within `try`."""
    yield from (
        "",
        "## Fast paths that are lost in silence",
        "",
        "Megatron Core imports these names within `try`. Where one is missing, it computes otherwise, in silence.",
        "",
        "| names | used for | without | matters for |",
        "|---|---|---|---|",
    )
    for path in FAST_PATHS:
        names = f"`{path.module}`" + (
            f": {', '.join(f'`{name}`' for name in path.names)}" if path.names else ""
        )
        yield f"| {names} | {text(path.used_for)} | {text(path.without)} | {text(path.matters)} |"


def text(words: str) -> str:
    """Return words of a record for a table or a paragraph."""
    return words.replace("|", "\\|").replace("<", "&lt;")
