"""All rows in order of worth, and the tables that are printed at the end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from first_run.family_rows import family_rows
from first_run.machine import Machine
from first_run.pytest_rows import pytest_rows
from first_run.resume_rows import resume_rows
from first_run.row import Row, RowFailed, mb
from first_run.speed_rows import further_speed_rows, speed_rows
from first_run.training_rows import training_rows

SPEED_COLUMNS = {
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "peak_memory_gib": ("GiB", "{:.1f}"),
    "synchronizations_per_step": ("waits", "{:g}"),
    "kernel_launches_per_step": ("launches", "{:g}"),
    "times_perf": ("x perf", "{:.3f}"),
    "largest_difference": ("loss apart", "{:.2%}"),
}
"""Value of a row to its heading and format in the table of speeds."""


def all_rows(peers: Path | None = None) -> list[Row]:
    """Return the table, in order of worth."""
    return [
        *training_rows(),
        *speed_rows(peers),
        *resume_rows(),
        *family_rows(),
        *pytest_rows(),
        *further_speed_rows(peers),
    ]


def report_row() -> Row:
    """Return the row that comes last: one report on all runs, which also shows that their files can be read."""

    def command(machine: Machine) -> list[str]:
        return mb("report", *map(str, run_folders(machine)), "--out", str(machine.out / "report.html"))

    def check(machine: Machine) -> dict[str, Any]:
        page = machine.out / "report.html"
        if not page.is_file():
            raise RowFailed(f"{page} is missing")
        return {"runs": len(run_folders(machine)), "page": str(page)}

    return Row(id="report", limit_seconds=60, command=command, check=check)


def run_folders(machine: Machine) -> list[Path]:
    """Return the folders of all runs of the table that have recorded a step."""
    found = [*machine.out.glob("runs/*/metrics.jsonl"), *machine.out.glob("bench/*/run-*/metrics.jsonl")]
    return sorted(file.parent for file in found if file.stat().st_size)


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in a readable form."""
    width = max(len(line["row"]) for line in lines)
    counted = {
        status: sum(line["status"] == status for line in lines) for status in ("passed", "failed", "skipped")
    }
    parts = []
    for line in lines:
        reason = str(line.get("reason", "")).partition("\n")[0][:100]
        parts.append(f"{line['status']:8} {line['row']:{width}} {line['seconds']:7.1f} s  {reason}".rstrip())
    counts = ", ".join(f"{number} {status}" for status, number in counted.items())
    speeds = speed_table(lines)
    return "\n".join([*parts, *([] if speeds is None else ["", speeds, ""]), counts])


def speed_table(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the measured rows as a table; None: there are none."""
    rows = [["", "ms/step", *(heading for heading, _ in SPEED_COLUMNS.values())]]
    for line in lines:
        values = line.get("values", {})
        if "step_seconds" in values:
            cells = [
                "-" if values.get(name) is None else text.format(values[name])
                for name, (_, text) in SPEED_COLUMNS.items()
            ]
            rows.append([line["row"], f"{1000 * values['step_seconds']['median']:.1f}", *cells])
    if len(rows) == 1:
        return None
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
