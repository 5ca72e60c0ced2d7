"""Program: run pages of the documentation word for word: `python tests/run_pages.py meta/docs/tutorials/own-text.md`.

The files and the shell blocks of a page are one script, in their order, in one folder per page, empty but for what
`given_files.py` writes: models, tokenizers and data that the reader has. A command that
fails, other than those of `FAILING`, is reported with its page. What needs a cluster, GPUs or a network is left out.
`meta/tests/test_documentation.py` checks each command of all pages in seconds; this program runs them, in minutes.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "meta" / "examples" / "own_project" / "src"
"""Folder in which a page calls commands on the code of the example."""
LEFT_OUT = {
    r"^(uv )?pip install|^export PIP_|^uv ": "an installation",
    r"^(srun|sbatch|torchrun|nsys)|^mb launch (?!.*--script-only)|/shared/|/data/runs": "a cluster or GPUs",
    r"s3://|^mlflow|^wandb|wandb_|mlflow_|^mb report --serve|^mb watch|arc_easy": "a service",
    r"--model-type": "a model of another family",
    r"\.\.\.|^cd ": "only described",
}
"""Regular expression of a command to what it needs."""
GIVEN = {
    "models/Qwen3-0.6B": ("qwen3", "models/Qwen3-0.6B"),
    "dataset_root: chat": ("conversations", "chat"),
    "--input web.jsonl": ("documents", "web.jsonl"),
    "--tokenizer tokenizer.json": ("byte_tokenizer", "tokenizer.json"),
}
"""Text in the script of a page to the function of `given_files` that writes what it names, and its path."""
FAILING = (
    "train.global_batch_size=7",
    "mb ckpt verify runs/killed",
    "optimizer.lr=5e-4 checkpoint.save_interval=20 --out runs/stopped",
    "mb check deepseek_v3 --world-size 1024",
    "kill -",
    "wait ",
    "mb pretrain --config books.yaml$",
)
"""Patterns of commands that fail on their page: it shows a rejection, damage or a stop."""
_BLOCK = re.compile(r"^```(yaml|python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.(?:yaml|py))\b")
_HEAD = """PS4='+ ${SECONDS}s: '
trap '{ code=$?; echo "exit $code: $BASH_COMMAND" | tee -a failed.txt >&2; } 2>/dev/null' ERR
set -x
"""
"""Start of each script: commands are printed with the seconds since its start, failed ones at once and in a file."""


def script_of(page: Path) -> tuple[str, list[str]]:
    """Return the script of a page, and the commands that it leaves out."""
    parts, left_out = [_HEAD], []
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                reason = next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, line)), None)
                if reason is None:
                    parts.append(f"{line}\n")
                else:
                    left_out.append(f"{line.strip()}    ({reason})")
        elif (found := _FILE.match(block)) is not None:
            parts.append(
                f"mkdir -p $(dirname {found[1]})\ncat > {found[1]} <<'END_OF_FILE'\n{block}END_OF_FILE\n"
            )
    return "".join(parts), left_out


def _write_given(folder: Path, script: str) -> None:
    """Write into `folder` what the script of a page takes as given."""
    for text, (function, name) in GIVEN.items():
        if text in script:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            code = f"import sys, pathlib, given_files; given_files.{function}(pathlib.Path(sys.argv[1]))"
            subprocess.run([sys.executable, "-c", code, folder / name], cwd=Path(__file__).parent, check=True)


def run(page: Path) -> list[str]:
    """Run a page and return the commands that failed unexpectedly."""
    script, left_out = script_of(page)
    print(f"== {page.relative_to(ROOT)}: {script.count(chr(10))} lines, {len(left_out)} left out", flush=True)
    for line in left_out:
        print(f"   left out: {line}")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(EXAMPLE),
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        _write_given(Path(folder), script)
        subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=False)
        record = Path(folder, "failed.txt")
        recorded = record.read_text().splitlines() if record.is_file() else []
    failed = [line for line in recorded if not any(re.search(part, line) for part in FAILING)]
    verdict = f"{len(failed)} commands failed" if failed else "as described"
    print(
        f"== {page.relative_to(ROOT)}: {verdict}, {time.monotonic() - start:.0f} s",
        *failed,
        sep="\n   ",
        flush=True,
    )
    return failed


def main(pages: list[str]) -> int:
    """Run the pages, by default all tutorials, "Ten minutes" and how-to pages; return the exit code."""
    folders = ("start", "tutorials", "how-to")
    chosen = [Path(page).resolve() for page in pages] or [
        page for name in folders for page in sorted((ROOT / "meta" / "docs" / name).glob("*.md"))
    ]
    failed = {page: commands for page in chosen if (commands := run(page))}
    for page, commands in failed.items():
        print(page.relative_to(ROOT), *commands, sep="\n   ")
    print(f"{len(chosen)} pages, {len(failed)} with commands that failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
