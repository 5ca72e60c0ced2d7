"""Commands `import-hf` and `export-hf` for the program of a trainer. Requires typer (extra `cli`)."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from mb_models.hf.config_json import ARCHITECTURES
from mb_models.hf.errors import OutputExistsError
from mb_models.hf.export_part import SHARD_BYTES, ExportPart


class Converter(Protocol):
    """Conversions of a trainer between Hugging Face folders and its checkpoints."""

    def import_folder(self, folder: Path, out: Path) -> int:
        """Write checkpoint and configuration from a Hugging Face folder; return the number of parameters."""

    def export_run(
        self,
        run: Path,
        out: Path,
        *,
        log: Callable[[str], object],
        adapters: bool,
        merge: bool,
        model_type: str | None,
        part: ExportPart,
        shard_bytes: int,
    ) -> int:
        """Write the newest checkpoint of a run as a Hugging Face folder; return its step."""


def add_weight_commands(
    app: typer.Typer,
    *,
    converter: Callable[[], Converter],
    reported: Callable[[Callable[[], int]], int],
    read_folder: Callable[[str], Path],
    trust: Any,
) -> None:
    """Add the two commands to a program.

    Args:
        app: the program.
        converter: returns the conversions; called when a command has checked its arguments.
        reported: calls a function and returns its exit code, or reports an error and returns that of the error.
        read_folder: parser of `--out`.
        trust: type of the option `--trust`, whose callback trusts the folders for the length of the command.
    """
    out_folder = Annotated[
        Path, typer.Option("--out", metavar="DIR", parser=read_folder, help="Receives what is written.")
    ]

    @app.command("import-hf", epilog="Example: mb import-hf ~/models/Llama-3.2-1B --out imported/llama")
    def import_hf(
        folder: Annotated[
            Path,
            typer.Argument(
                metavar="DIR", help="A folder with config.json and *.safetensors.", show_default=False
            ),
        ],
        out: out_folder,
    ) -> None:
        """Turn a model in Hugging Face's form into a checkpoint that any layout can load.

        DIR receives checkpoints/, run_config.yaml (fine-tunes it: mb finetune DIR/run_config.yaml) and the tokenizer.
        Nothing is downloaded. Not needed before checkpoint.pretrained_checkpoint=DIR, which converts by itself.
        """

        def work() -> int:
            require_new(out)
            parameters = converter().import_folder(folder, out)
            print(f"{parameters / 1e6:.1f} M parameters in {out / 'checkpoints'}")
            print(f"fine-tune them: mb finetune {out / 'run_config.yaml'}")
            return 0

        raise typer.Exit(reported(work))

    @app.command("export-hf", epilog="Example: mb export-hf runs/gpt_tiny --out exported/gpt_tiny")
    def export_hf(
        run: Annotated[Path, typer.Argument(help="A run folder, or its checkpoints.", show_default=False)],
        out: out_folder,
        merge: Annotated[
            bool,
            typer.Option(
                "--merge", help="The model with merged adapters, as by default; a run without is an error."
            ),
        ] = False,
        adapters: Annotated[
            bool, typer.Option("--adapters", help="Only the adapters, as Hugging Face's peft loads them.")
        ] = False,
        model_type: Annotated[
            str | None,
            typer.Option(
                metavar="TYPE",
                help="Family of the output. Default: that of the imported model, else the first that computes the same "
                f"of {', '.join(ARCHITECTURES)}.",
                show_default=False,
            ),
        ] = None,
        shard_gib: Annotated[
            float,
            typer.Option(metavar="GIB", min=0, help="Maximum size of a file, unless a tensor is larger."),
        ] = SHARD_BYTES / 2**30,
        part: Annotated[
            ExportPart,
            typer.Option(
                metavar="I/N",
                parser=part_of_text,
                help="Write only every N-th file, from file I. N processes, on any machines, write a folder together; "
                "it is complete when the last has ended.",
                show_default=False,
            ),
        ] = "0/1",  # type: ignore[assignment]  # parsed by typer
        _trust: trust = None,
    ) -> None:
        """Write the newest checkpoint of a run in Hugging Face's form, whatever layout trained it."""
        if merge and adapters:
            raise typer.BadParameter(
                "excludes --adapters: either the model with merged adapters is written, or the adapters alone",
                param_hint="--merge",
            )

        if adapters and part.count > 1:
            raise typer.BadParameter("excludes --adapters: they are one file", param_hint="--part")

        def work() -> int:
            if part.count == 1:
                require_new(out)
            options: dict[str, Any] = {"adapters": adapters, "merge": merge, "model_type": model_type}
            options |= {"part": part, "shard_bytes": int(shard_gib * 2**30)}
            step = converter().export_run(run, out, **options, log=partial(print, file=sys.stderr))
            share = "" if part.count == 1 else f"part {part.index}/{part.count} of the "
            print(f"{share}{'adapters' if adapters else 'weights'} of step {step} in {out}")
            return 0

        raise typer.Exit(reported(work))


def part_of_text(text: str) -> ExportPart:
    """Return the part that `I/N` names.

    Raises:
        typer.BadParameter: the text has another form, or there is no such part.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not of the form I/N, such as 0/4")
    try:
        return ExportPart(index=int(index), count=int(count))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def require_new(out: Path) -> None:
    """Reject an output folder with files.

    Raises:
        OutputExistsError: the output folder has files, which would be mixed with the new ones.
    """
    if out.is_dir() and any(out.iterdir()):
        raise OutputExistsError(
            f"--out: {out} holds files, which would be mixed with the new ones. Name another."
        )
