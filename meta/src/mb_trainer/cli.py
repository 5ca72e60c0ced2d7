"""The command line `mb`: arguments in, exit code out. The work is done in `mb_trainer.commands`.

Each command imports its module when it is called, so that `mb --help` answers at once and `mb recipes` needs no torch.
"""

import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_trainer.cli_ckpt import ckpt

app = typer.Typer(
    name="mb",
    help="Train language models with Megatron Core, on GPUs or on a laptop.",
    epilog="Start with: mb pretrain. It trains a small GPT on the Python sources of this machine in a few minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data = typer.Typer(help="Build data.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(ckpt, name="ckpt")
config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")

Recipe = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A recipe's name or a YAML file (default: gpt_tiny), then overrides in Hydra's grammar.",
        show_default=False,
    ),
]
ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", metavar="FILE", help="A YAML file laid over the recipe; repeatable, later wins."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Run folder; default runs/RECIPE.", show_default=False),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc", min=1, metavar="N", help="Processes on this machine; default 1.", show_default=False
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", min=1, metavar="N", help="Processes of the whole run, on any machines."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU that the run is meant for: h100, b200, ...; default: this machine's.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--te", metavar="VERSION", help="Transformer Engine there, such as 2.20; default: what is here."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class LogFormats(str, Enum):
    """Who wrote a log."""

    MB = "mb"
    MEGATRON_LM = "megatron-lm"
    MEGATRON_BRIDGE = "megatron-bridge"
    TORCHTITAN = "torchtitan"
    CLOUDAI = "cloudai"


def command(name: str) -> Any:
    """Import the module behind a command; only the command that was asked for is loaded."""
    return import_module(f"mb_trainer.commands.{name}")


@app.command(epilog="Example: mb pretrain gpt_tiny train.train_iters=50 optimizer.lr=1e-3 --out runs/try")
def pretrain(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    resume_with_changes: Annotated[
        bool, typer.Option("--resume-with-changes", help="Go on in a run folder although settings differ.")
    ] = False,
) -> None:
    """Train a model from scratch, or go on where the run folder's newest checkpoint stopped.

    With no argument it trains the recipe gpt_tiny: a GPT of five million parameters on the source files of this
    Python's standard library, on the CPU or one GPU.

    The run folder receives run_config.yaml, metrics.jsonl (a JSON object per step), events.jsonl, tensorboard/,
    checkpoints/ and log.txt. Running the same command again resumes, or says that the run is complete.

    Overrides are dotted paths: train.train_iters=50, model.num_layers=2, optimizer.lr=1e-3; the run_config.yaml of any
    run lists all fields with their values. Low to high: class
    default, recipe, --config files in order, command line. Ctrl-C saves a checkpoint and stops; a second one stops
    at once.

    Several processes: mb pretrain --nproc 2 model.tensor_model_parallel_size=2. On several machines start the same
    command with torchrun (torchrun ... -m mb_trainer pretrain ...) or srun, without --nproc.
    """
    asked = {"files": config or [], "out": out, "nproc": nproc, "resume_with_changes": resume_with_changes}
    raise typer.Exit(command("train").pretrain(list(recipe or []), **asked))


@app.command(epilog="Example: mb finetune lora_tiny peft.dim=16 --out runs/lora")
def finetune(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    resume_with_changes: Annotated[
        bool, typer.Option("--resume-with-changes", help="Go on in a run folder although settings differ.")
    ] = False,
) -> None:
    """Train on from the weights in checkpoint.pretrained_checkpoint, all of them or adapters alone.

    peft=lora, peft=canonical_lora or peft=dora trains adapters (peft.dim, peft.alpha, peft.dropout,
    peft.target_modules); checkpoints then hold the adapters alone. Everything else is as with mb pretrain.

    The recipe lora_tiny starts from what mb pretrain gpt_tiny made in runs/gpt_tiny.
    """
    asked = {"files": config or [], "out": out, "nproc": nproc, "resume_with_changes": resume_with_changes}
    raise typer.Exit(command("train").pretrain(list(recipe or []), **asked, command="finetune"))


@app.command("import-hf", epilog="Example: mb import-hf ~/models/Llama-3.2-1B --out imported/llama")
def import_hf(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A folder with config.json and *.safetensors.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Receives checkpoint and configuration.")],
) -> None:
    """Turn a Llama, Qwen2, Qwen3 or Mixtral in Hugging Face's form into a checkpoint that any layout can load.

    DIR receives checkpoints/, run_config.yaml (fine-tunes it: mb finetune DIR/run_config.yaml) and the tokenizer.
    Nothing is downloaded.
    """
    raise typer.Exit(command("hf").import_hf(folder, out=out))


@app.command("export-hf", epilog="Example: mb export-hf runs/gpt_tiny --out exported/gpt_tiny")
def export_hf(
    run: Annotated[Path, typer.Argument(help="A run folder, or its checkpoints.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Receives config.json and *.safetensors.")
    ],
) -> None:
    """Write the newest checkpoint of a run in Hugging Face's form, whatever layout trained it."""
    raise typer.Exit(command("hf").export_hf(run, out=out))


@app.command(epilog='Example: mb sample runs/gpt_tiny --prompt "def " --tokens 80')
def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "def ",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 120,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token; higher is more varied.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random choice.")] = 1234,
) -> None:
    """Print text from the newest valid checkpoint of a run, so that a person sees what was learned."""
    if not prompt:
        raise typer.BadParameter(
            "must not be empty: the first token has to follow something", param_hint="--prompt"
        )
    raise typer.Exit(
        command("sample").sample(run, prompt=prompt, tokens=tokens, temperature=temperature, seed=seed)
    )


@app.command(epilog="Example: mb report runs/a runs/b --out compared.html")
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders, or metrics.jsonl files.", show_default=False),
    ] = None,
    from_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="The log of another trainer; repeatable.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormats | None,
        typer.Option(
            "--log-format", help="Who wrote the log; default: what its lines look like.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Default: report.html in the run folder.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures; write no page without --out.")
    ] = False,
) -> None:
    """Write what happened in a run, or in several side by side, as one HTML file that needs no network.

    A run may be going on, or have been killed. Logs of Megatron-LM, Megatron-Bridge, torchtitan and mb are read, and
    the step-time lines that CloudAI reads.
    """
    if not runs and not from_log:
        raise typer.BadParameter("give a run folder, or a log with --from-log", param_hint="RUN")
    asked = {
        "logs": from_log or [],
        "log_format": log_format and log_format.value,
        "out": out,
        "as_json": as_json,
    }
    raise typer.Exit(command("report").report(runs or [], **asked))


@app.command(epilog="Example: mb watch runs/gpt_tiny")
def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, or a metrics.jsonl file.", show_default=False)],
    seconds: Annotated[float, typer.Option(min=0.1, help="Pause between two looks.")] = 2.0,
) -> None:
    """Show a run on the terminal while it goes on: progress, loss, speed, time left, events. Ctrl-C leaves it alone.

    Without a terminal it prints what is known now, once.
    """
    raise typer.Exit(command("watch").watch(run, seconds=seconds))


@app.command(epilog="Example: mb recipes")
def recipes() -> None:
    """List the recipes, one line each."""
    raise typer.Exit(command("recipes").recipes())


@app.command(
    epilog="Example: mb check gpt_tiny model.tensor_model_parallel_size=4 --world-size 64 --gpu h100"
)
def check(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    gpu: Gpu = None,
    te: Engine = None,
    as_json: Json = False,
) -> None:
    """Report every mistake of a configuration at once, for any number of processes and any GPU.

    Each problem has its rule, the values, the reason, what to do, and where the values came from. Nothing is built and
    nothing is written. Exit code 0: no rule refuses the run; 1: problems; 2: it could not be read.
    """
    preflight = command("preflight")
    target = preflight.Target(world_size=world_size or nproc or 1, gpu=gpu, transformer_engine=te)
    raise typer.Exit(
        preflight.check(list(recipe or []), files=config or [], out=out, target=target, as_json=as_json)
    )


@app.command(
    epilog="Example: mb plan gpt_tiny model.pipeline_model_parallel_size=2 --world-size 8 --gpu h100 --picture p.svg"
)
def plan(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    gpu: Gpu = None,
    te: Engine = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw a bar for each pipeline stage.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will need: parameters, memory on each GPU, FLOPs, checkpoint size, pipeline waiting.

    Everything is computed from the configuration; nothing is built. Without --world-size it is planned for the fewest
    processes that hold the model. A configuration that `mb check` refuses is planned too, as far as it goes.
    """
    if picture is not None and picture.suffix.lower() != ".svg":
        raise typer.BadParameter("draws SVG: give a name that ends in .svg", param_hint="--picture")
    asked = {"world_size": world_size or nproc, "gpu": gpu, "transformer_engine": te, "picture": picture}
    raise typer.Exit(
        command("plan").plan(list(recipe or []), files=config or [], out=out, **asked, as_json=as_json)
    )


@app.command(
    epilog="Example: mb sweep gpt_tiny model.tensor_model_parallel_size=1,2,4 train.micro_batch_size=1,2 --world-size 8"
)
def sweep(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    world_size: Annotated[
        str,
        typer.Option(
            "--world-size", metavar="N[,N...]", help="Processes of the whole run; several are swept over."
        ),
    ] = "1",
    gpu: Gpu = None,
    te: Engine = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Passing points to resolve, plan and show; 0: all.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Check every combination of several values at once, and plan those that pass.

    A field is swept over where it is given several values: key=1,2,4 or key=range(1,5); or a list, in an override or in
    a YAML file, where the field takes no list: key=[1,2,4]. Where it takes one, the list is its value, and several
    lists are key=[1,2],[3].

    For points that are refused, the rules that refuse them are named; every point is counted. Exit code 1: none passes.
    """
    if not all(number.isdecimal() and int(number) > 0 for number in world_size.split(",")):
        raise typer.BadParameter(
            "must be a number above 0, or several with commas", param_hint="--world-size"
        )
    target = command("preflight").Target
    targets = [
        target(world_size=int(number), gpu=gpu, transformer_engine=te) for number in world_size.split(",")
    ]
    asked = {"files": config or [], "out": out, "targets": targets, "limit": limit or None}
    raise typer.Exit(command("sweep").sweep(list(recipe or []), **asked, as_json=as_json))


@app.command(epilog="Example: mb explain V242")
def explain(
    rule: Annotated[str, typer.Argument(help="Its number, such as V242.", show_default=False)],
) -> None:
    """Explain a rule: why it is there, what to do, an example that it refuses and one that passes."""
    raise typer.Exit(command("preflight").explain(rule))


@app.command(
    "verify-resume",
    epilog="Example: mb verify-resume gpt_tiny --steps 20 --cut 7 --nproc 2 model.tensor_model_parallel_size=2",
)
def verify_resume(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep both runs and what they recorded here.",
            show_default=False,
        ),
    ] = None,
    nproc: Processes = None,
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Steps of the run.")] = 20,
    cut: Annotated[int, typer.Option(min=1, metavar="K", help="Step after which it is interrupted.")] = 7,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill it (SIGKILL) some steps after the checkpoint of step K.")
    ] = False,
    resume_nproc: Annotated[
        str | None,
        typer.Option(
            "--resume-nproc",
            metavar="N[,N...]",
            help="Go on with so many processes; several: interrupted at each multiple of K. Compares what was read.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that a resumed run is the run that nobody interrupted: run a recipe straight and cut, compare every bit.

    Compared for every step on every rank: the sequences that were read, counters, learning rate, all random streams,
    losses, gradient norms, optimizer state and parameters. The first difference is named with its step, rank and both
    values. Nothing is written but a temporary folder, or --out. Every tensor is hashed in every step: choose a model
    that is small for its layout. On GPUs ask for model.deterministic_mode=true.

    Exit code 0: equal; 1: different, or a run failed.
    """
    starts = (resume_nproc or "").split(",") if resume_nproc is not None else []
    if not all(number.isdecimal() and int(number) > 0 for number in starts):
        raise typer.BadParameter(
            "must be a number above 0, or several with commas", param_hint="--resume-nproc"
        )
    if cut * max(1, len(starts)) >= steps:
        raise typer.BadParameter(
            f"{cut} leaves nothing to go on with in {steps} steps; the last interruption must come before the end",
            param_hint="--cut",
        )
    if kill and starts:
        raise typer.BadParameter("cannot be combined with --resume-nproc", param_hint="--kill")
    work = command("verify_resume")
    how = work.Cut(steps=steps, step=cut, kill=kill, resumed_by=tuple(map(int, starts)))
    asked = {"files": config or [], "out": out, "nproc": nproc, "cut": how, "as_json": as_json}
    raise typer.Exit(work.verify(list(recipe or []), **asked))


@app.command("recorded-run", hidden=True)
def recorded_run(
    out: Annotated[Path, typer.Option()],
    record: Annotated[Path, typer.Option()],
    start: Annotated[int, typer.Option()],
    recipe: Recipe = None,
    config: ConfigFiles = None,
    nproc: Processes = None,
    kill_after: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Train as `mb pretrain` does, and record; `mb verify-resume` starts this."""
    work = command("verify_resume")
    recording = work.Recording(folder=record, start=start, kill_after=kill_after)
    asked = {"files": config or [], "out": out, "nproc": nproc, "recording": recording}
    raise typer.Exit(work.recorded_run(list(recipe or []), **asked))


@config_app.command(epilog="Example: mb config show gpt_tiny optimizer.lr=1e-3 --origin")
def show(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print the resolved configuration as YAML that loads back; secrets are masked."""
    preflight = command("preflight")
    target = preflight.Target(world_size=world_size or nproc or 1)
    raise typer.Exit(
        preflight.show(list(recipe or []), files=config or [], out=out, target=target, origin=origin)
    )


@data.command(
    epilog="Example: mb data build --input books/ --input web.jsonl --tokenizer tokenizer.json --out data/mine"
)
def build(
    inputs: Annotated[
        list[Path], typer.Option("--input", metavar="PATH", help="Text files, folders or JSONL; repeatable.")
    ],
    tokenizer: Annotated[Path, typer.Option(metavar="FILE", help="A tokenizer.json, or its folder.")],
    out: Annotated[Path, typer.Option(metavar="PREFIX", help="Writes PREFIX.bin and PREFIX.idx.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenize.")] = 2,
    json_key: Annotated[str, typer.Option(help="Key of the text in a JSONL line.")] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Turn text into the .bin and .idx files that Megatron reads, streaming, with bounded memory."""
    choices = {"tokenizer": tokenizer, "prefix": out, "workers": workers, "json_key": json_key}
    raise typer.Exit(command("data").build(inputs, **choices, overwrite=overwrite))


def main() -> None:
    """Run the command line."""
    sys.exit(app())
