"""First run on a machine with a GPU: a table of checks, in order of worth, that needs plain `python3` and no network.

    python3 tests/gpu/first_run.py [--packages DIR] [--out DIR] [--rows PATTERN] [--deadline SECONDS] [--dry-run]

`--packages DIR` is a folder of packages that the machine lacks: wheels, site-packages to add to the path, or a folder
with an `install.sh` that unpacks them into $ROOT/site and writes $ROOT/te_env.sh. Each row is a process of its own with
a time limit, and the next row follows whatever happens. The deadline of 400 seconds ends the table; `--rows` runs the
rest. Standard output has one JSON object per row, standard error the same for people, and at the end a table, a table
of speeds, and the path of a report on all runs. The exit code is 0 when no row failed, else 1.

`--dry-run` hides the GPU: what can run on the CPU runs in a small size, and the settings of every other row are checked
for an H200 with `mb check` before the row is skipped.
"""

import argparse
import fnmatch
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the package of the same name has precedence there

from first_run.children import CHILDREN, run_child
from first_run.machine import MachineError, prepare
from first_run.row import Row
from first_run.running import table
from first_run.table import all_rows, report_row, run_folders, summary

DEADLINE = 400.0
"""Seconds in which a machine with a GPU is done, but for the report."""
MANY_CPUS = 12
"""Number of CPUs from which four rows that measure no speed run at the same time."""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packages",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="packages that the machine lacks; repeatable",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="DIR",
        help="further programs to measure; see first_run/peers/measured.py",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="logs, runs and results; default: a temporary folder"
    )
    parser.add_argument(
        "--rows", action="append", metavar="PATTERN", help="rows to run, as resume.*; repeatable"
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help=f"start no row after, and stop what runs; default: {DEADLINE:g}, and none in a dry run",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="rows at the same time, but for those that measure speed"
    )
    parser.add_argument("--dry-run", action="store_true", help="hide the GPU")
    parser.add_argument("--list", action="store_true", help="print the ids of the rows")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    return parser


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    """Return the rows that match a pattern.

    Raises:
        SystemExit: No row matches, or there is no folder of peers.
    """
    if options.peers is not None and not options.peers.is_dir():
        raise SystemExit(f"--peers: {options.peers} is not a folder. Name one with programs.")
    rows = all_rows(options.peers and options.peers.resolve())
    chosen = [row for row in rows if any(fnmatch.fnmatch(row.id, each) for each in options.rows or ["*"])]
    if not chosen:
        raise SystemExit(f"--rows: no row matches {', '.join(options.rows)}. --list prints the rows.")
    return chosen


def main() -> int:
    """Run the table; return 0 when no row failed."""
    options = arguments().parse_args()
    if options.child is not None:
        return run_child(options.child)
    chosen = chosen_rows(options)
    if options.list:
        print(*(row.id for row in chosen), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the row that runs
    default = float("inf") if options.dry_run else DEADLINE
    ends = time.monotonic() + (default if options.deadline is None else options.deadline)
    jobs = options.jobs or (4 if not options.dry_run and (os.cpu_count() or 1) >= MANY_CPUS else 1)
    out = (options.out or Path(tempfile.mkdtemp(prefix="first-run-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    with (out / "results.jsonl").open("a") as results:

        def report(line: dict[str, Any]) -> None:
            lines.append(line)
            text = json.dumps(line)
            print(text, flush=True)
            print(text, file=results, flush=True)
            print(f"{line['status']:8}{line['seconds']:7.1f} s  {line['row']}", file=sys.stderr, flush=True)

        began = time.monotonic()
        try:
            machine = prepare(out, options.packages, dry_run=options.dry_run)
        except (MachineError, OSError) as error:
            seconds = round(time.monotonic() - began, 1)
            report({"row": "packages", "seconds": seconds, "status": "failed", "reason": str(error)})
            return 1
        for line in table(machine, chosen, ends=ends, jobs=jobs):
            report(line)
        if run_folders(machine):
            for line in table(machine, [report_row()], ends=float("inf")):
                report(line)
    print(f"\n{summary(lines)}\nlogs: {out / 'logs'}", file=sys.stderr)
    if run_folders(machine):
        print(f"report: {out / 'report.html'}", file=sys.stderr)
    return int(any(line["status"] == "failed" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
