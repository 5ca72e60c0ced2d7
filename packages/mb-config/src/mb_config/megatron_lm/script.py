"""Arguments of Megatron-LM in a text, in a shell script that starts it, or in a YAML file of its functional tests.

Also the environment variables that a script sets for its training, and programs that do not train a model.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mb_config.megatron_lm.flag_table import MegatronFlagError, flags_by_option
from mb_config.megatron_lm.shell.expansion import MARK, Expander, is_empty, marked_names
from mb_config.megatron_lm.shell.interpreter import (
    Interpretation,
    StartedCommand,
    holds_flags,
    interpret,
    passed_environment,
)
from mb_config.rules.environment import loads_code

_SETTINGS = re.compile(
    r"(NCCL|NVTE|NVSHMEM|CUDA|CUBLAS|CUDNN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|UCX|UB|GLOO|OMP|MKL|TOKENIZERS|HF|IB)_\w+"
)
"""Variables that libraries of a training process read."""

_OF_THE_LAUNCHER = re.compile(
    r"MASTER_\w+|(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES"
)
_ATTENTION = {"flash": "NVTE_FLASH_ATTN", "fused": "NVTE_FUSED_ATTN", "unfused": "NVTE_UNFUSED_ATTN"}
"""Backend of `--attention-backend` -> variable that excludes it if it is 0. Megatron Core sets all three."""
_SECRET = re.compile(r"\w*(KEY|TOKEN|SECRET|PASSWORD)")


def attention_backend(environment: Mapping[str, str]) -> str | None:
    """Return the `--attention-backend` of a script that excludes FlashAttention or cuDNN by variables, else None.

    Without that flag, Megatron-LM rejects such variables.
    """
    allowed = [backend for backend, name in _ATTENTION.items() if environment.get(name) != "0"]
    return allowed[0] if allowed and not {"flash", "fused"} <= {*allowed} else None


def carried_variables(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables for the section `env_vars`, and the other ones with the reason why they are not carried."""
    carried: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, value in environment.items():
        if MARK.search(value):
            named[name] = "its value is not known without running the script"
        elif _OF_THE_LAUNCHER.fullmatch(name):
            named[name] = "the launcher sets it"
        elif name in _ATTENTION.values():
            named[name] = "model.attention_backend sets it"
        elif _SECRET.fullmatch(name):
            named[name] = "a secret; set it in the shell"
        elif loads_code({name: value}):
            named[name] = "it loads code; set it in the shell"
        elif _SETTINGS.fullmatch(name):
            carried[name] = value
        else:
            named[name] = "no library of the training reads it; set it in the shell if custom code does"
    return carried, named


_GENERATION = "generates text; mb sample and mb lm-eval do so with a run"
_MODEL_OPT = "is part of ModelOpt (quantization, pruning, distillation), which has no counterpart"
_OTHER = {
    r"(.*/)?pretrain_bert\.py": "trains BERT, which has no counterpart; GPT, hybrids and T5 have one",
    r"(.*/)?(pretrain_(ict|retro|realm)|.*/retro/.*)\.py": "trains a retrieval model, which has no counterpart",
    r"(.*/)?pretrain_vision\w*\.py": "trains a vision model, which has no counterpart",
    r"(.*/)?pretrain_(vlm|mimo)\.py|.*multimodal/train\.py|.*mimo[/.]\w+(\.py)?": (
        "trains a vision-language model, whose modules have arguments of their own; see MimoModelConfig"
    ),
    r"(.*/)?train_rl\.py": "is reinforcement learning, which has no counterpart",
    r"(.*/)?(run_\w*text_generation\w*|text_generation\w*|generate\w*|\w*inference\w*)(\.py)?": _GENERATION,
    r"(.*/|.*\.)inference[./].*": _GENERATION,
    r"(.*/)?preprocess\w*\.py": "prepares data; mb data build does so",
    r"(.*/)?(checkpoint_inspector|combine_state_dicts|convert|pp_checkpoint_converter)\.py": (
        "converts checkpoints; mb import-hf and mb ckpt do so"
    ),
    r"(.*/)?tasks/.*\.py": "evaluates a model on a task; mb lm-eval does so",
    r".*modelopt/\w+\.py": _MODEL_OPT,
}
"""Expression for the path of a program -> what it does instead."""


def reject_program(program: str) -> None:
    """Reject a program of Megatron-LM that does not train a model of this project. Others pass, also unknown ones.

    Raises:
        MegatronFlagError: It is one of those programs.
    """
    for expression, reason in _OTHER.items():
        if re.fullmatch(expression, program):
            raise MegatronFlagError(
                f"{program}: {reason}. Pass a script that starts pretrain_gpt.py or the like."
            )


def reject_nemo(words: Sequence[str]) -> None:
    """Reject settings of NeMo, which the functional tests of Megatron-LM contain as well.

    Raises:
        MegatronFlagError: The first words are such settings.
    """
    if words and re.fullmatch(r"(trainer|model|data|log|optim)\.[\w.]+", words[0]):
        raise MegatronFlagError(f"{words[0]}: is a setting of NeMo, not an argument of Megatron-LM.")


LAUNCHER = re.compile(
    r"--(nproc[-_]per[-_]node|nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+|max[-_]restarts|tee"
    r"|log[-_]dir|standalone|local[-_]ranks[-_]filter)(=.*)?"
)
"""Options of torchrun, which stand in the same scripts."""

_MODULES_THAT_LAUNCH = ("torch.distributed.run", "torch.distributed.launch")
_PRINTING = ("echo", "printf", "export")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptWords:
    """Arguments in a script."""

    words: tuple[str, ...]
    """Flags of Megatron-LM and their values."""
    program: str = ""
    """Python program that gets them, such as `pretrain_gpt.py`; empty if the text has flags only."""
    launcher: tuple[str, ...] = ()
    """Options of torchrun, without their values."""
    world_size: int | None = None
    """Processes that torchrun would start; None if the script does not determine them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the script sets for the program, as far as their values are known."""
    notes: tuple[str, ...] = ()
    """What the words depend on: variables taken as empty, conditions that could not be decided, files not read."""


def read_words(
    text: str,
    *,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    path: Path | None = None,
) -> ScriptWords:
    """Return the flags in a text: arguments as on a command line, or a shell script.

    Of a script, the statements are followed as bash would: variables, lists, arithmetic, `if`, `case`, `for`,
    functions, here-documents, sourced files, `eval` and the command of `sh -c "..."`. Nothing is executed.

    Args:
        text: The text.
        variables: Values of variables, which take precedence over those in the script. A number is an argument of the
            script.
        arguments: Arguments of the script, `$1` and so on. From the first flag on, they follow the script's own flags,
            so that they take precedence, unless the script itself reads its arguments in one go (`"$@"`).
        path: The script, next to which the files that it sources are found.

    Raises:
        MegatronFlagError: The text cannot be split into words, or a variable has no value.
    """
    if text.lstrip().startswith("-"):
        return _flags_of_text(text, variables or {})
    interpretation = interpret(text, variables=variables or {}, arguments=arguments, path=path)
    flags_from = next((n for n, word in enumerate(arguments) if word.startswith("--")), len(arguments))
    further = () if interpretation.uses_arguments else tuple(arguments[flags_from:])
    chosen, notes = _chosen_command(interpretation)
    program, before, after = _split(chosen.words)
    reject_program(program)
    words, of_words = _known_words([*after, *further])
    notes += [
        *of_words,
        *(
            f"not decided, taken as false: {condition}"
            for condition in dict.fromkeys(interpretation.undecided)
        ),
        *(f"not read: {name}: no such file" for name in dict.fromkeys(interpretation.not_read)),
    ]
    if interpretation.defaults:
        values = ", ".join(f"{name}={_readable(value)}" for name, value in interpretation.defaults.items())
        notes.append(
            f"not set, so that the default in the script counts: {values}; --set NAME=VALUE for others"
        )
    return ScriptWords(
        words=tuple(words),
        program=program,
        launcher=tuple(word for word in before if word.startswith("--")),
        world_size=_world_size(before) or _tasks(before, interpretation),
        environment={**chosen.environment, **passed_environment(before)},
        notes=tuple(notes),
    )


def _readable(value: str) -> str:
    """Return a value with the names of its unknown parts."""
    return shlex.quote(MARK.sub(lambda found: f"${found[1].removeprefix('$')}", value)) if value else value


def _tasks(launcher: Sequence[str], found: Interpretation) -> int | None:
    """Return the tasks of a job of Slurm, unless torchrun starts processes in each."""
    tasks = found.variables.get("SLURM_NTASKS")
    starts_more = any(LAUNCHER.fullmatch(word) for word in launcher)
    return int(tasks) if isinstance(tasks, str) and tasks.isdigit() and not starts_more else None


def _flags_of_text(text: str, variables: Mapping[str, str]) -> ScriptWords:
    """Return the flags in a text that is no script."""
    expander = Expander(variables, (), "script.sh")
    try:
        written = shlex.split(text, comments=True)
    except ValueError as error:
        raise MegatronFlagError(f"the arguments cannot be split into words: {error}.") from error
    words, notes = _known_words(
        [item for word in written for item in expander.words(word)] if "$" in text else written
    )
    return ScriptWords(words=tuple(words), notes=tuple(notes))


def read_test_case(
    settings: Mapping[str, object], *, variables: Mapping[str, str] | None = None
) -> ScriptWords:
    """Return the flags of a `model_config.yaml` of Megatron-LM's functional tests.

    Args:
        settings: Contents of the file, with `MODEL_ARGS` and `ENV_VARS`.
        variables: Values of the variables in it, such as `DATA_PATH`.

    Raises:
        MegatronFlagError: It has no flags, it does not train, or a variable has no value.
    """
    flags, environment = settings.get("MODEL_ARGS"), settings.get("ENV_VARS") or {}
    if not isinstance(flags, Mapping) or not isinstance(environment, Mapping):
        raise MegatronFlagError(
            "MODEL_ARGS: is not a mapping of flags to values. Pass a test case that has one."
        )
    if settings.get("MODE", "pretraining") != "pretraining":
        raise MegatronFlagError(f"MODE: is {settings['MODE']}. Only test cases that train can be converted.")
    expander = Expander(variables or {}, (), "model_config.yaml")
    words = [word for flag, value in flags.items() for word in _test_words(str(flag), value, expander)]
    reject_nemo(words)
    known, notes = _known_words(words)
    if others := sorted(set(settings) - {"MODEL_ARGS", "ENV_VARS", "MODE"}):
        notes.append(f"keys of the test that are not part of a configuration: {', '.join(others)}")
    return ScriptWords(
        words=tuple(known),
        environment={str(name): expander.document(str(value)) for name, value in environment.items()},
        notes=tuple(notes),
    )


def _test_words(flag: str, value: object, expander: Expander) -> list[str]:
    """Return the words of a flag as the runner of the functional tests writes them."""
    if value is True:
        return [flag]
    text = str(value).strip()
    if text.startswith("[") and text.endswith("]"):
        return [
            flag,
            *(item for word in re.split(r"[\s,]+", text[1:-1].strip()) for item in expander.words(word)),
        ]
    known = flags_by_option().get(flag)
    several = known is not None and known.nargs is not None
    if text.startswith("$") or (several and "(" not in text):
        return [flag, *(item for word in text.split() for item in expander.words(word))]
    return [flag, expander.document(text)]


def _chosen_command(interpretation: Interpretation) -> tuple[StartedCommand, list[str]]:
    """Return the command that trains: the last of those with the most flags of Megatron-LM, and notes on it.

    Without a command that has flags, those in variables of the script count.
    """
    options = flags_by_option()
    best: tuple[int, StartedCommand] | None = None
    for command in interpretation.commands:
        _, _, after = _split(command.words)
        known = sum(word.partition("=")[0] in options for word in after)
        has_flags = any(word.startswith("--") for word in after)
        if has_flags and command.words[0] not in _PRINTING and (best is None or known >= best[0]):
            best = known, command
    names = [] if interpretation.ended_where else _flag_variables(interpretation)
    if best is not None and (best[0] or not names):
        return best[1], []
    if interpretation.ended_where:
        raise MegatronFlagError(
            f"no flags were found: the script ends where {interpretation.ended_where}. Set its variables with "
            "--set NAME=VALUE, or pass its arguments after it."
        )
    if not names:
        raise MegatronFlagError(
            "no flags were found. Pass the arguments of pretrain_gpt.py, or the script with them."
        )
    words = [word for name in names for word in _variable_words(interpretation.variables[name])]
    note = f"the script starts no program: the flags of {', '.join(names)} are read"
    return StartedCommand(words=tuple(words), environment={}), [note]


def _flag_variables(found: Interpretation) -> list[str]:
    """Return the variables with flags; if one of them is a command line with a program, the last of these alone."""
    names = [name for name, value in found.variables.items() if holds_flags(value)]
    lines = [name for name in names if _split(_variable_words(found.variables[name]))[0]]
    return lines[-1:] or names


def _variable_words(value: "str | list[str]") -> list[str]:
    return value.split() if isinstance(value, str) else value


def _split(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the program, the words before it, and those after it. Without a program, all flags but torchrun's."""
    for index, word in enumerate(words):
        is_module = index > 0 and words[index - 1] == "-m" and word not in _MODULES_THAT_LAUNCH
        if (word.endswith(".py") or is_module) and not word.startswith("-"):
            return word, [*words[:index]], _without_comments(words[index + 1 :])
    ours: list[str] = []
    launcher: list[str] = []
    current = launcher
    for word in words:
        if word.startswith("--"):
            current = launcher if LAUNCHER.fullmatch(word) else ours
        current.append(word)
    return "", launcher, _without_comments(ours)


def _without_comments(words: Sequence[str]) -> list[str]:
    """Return words without comments, which bash does not know inside of a quotation."""
    kept: list[str] = []
    in_comment = False
    for word in words:
        in_comment = word.startswith("#") or (in_comment and not word.startswith("--"))
        if not in_comment:
            kept.append(word)
    return kept


def _known_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words, and notes on variables that are not set where no value is needed.

    Raises:
        MegatronFlagError: A value depends on variables that are not set.
    """
    kept: list[str] = []
    empty: dict[str, None] = {}
    missing: dict[str, None] = {}
    for word in words:
        names = marked_names(word)
        if not names:
            kept.append(word)
        elif is_empty(word) and not _needs_value(kept):
            empty |= dict.fromkeys(names)
        else:
            missing |= dict.fromkeys(names)
            kept.append(word)
    if missing:
        settable = [name for name in missing if name.isidentifier() or name.isdecimal()]
        others = [name for name in missing if name not in settable]
        fix = [f"Give them with {' '.join(f'--set {name}=VALUE' for name in settable)}."] if settable else []
        fix += [f"Write the values of {', '.join(others)} into the script: nothing is run."] if others else []
        raise MegatronFlagError(f"variables without a value: {', '.join(missing)}. {' '.join(fix)}")
    return kept, [f"{name} is not set and taken as empty" for name in empty]


def _needs_value(words: Sequence[str]) -> bool:
    """Return whether the last flag still needs a value."""
    last = next((n for n in reversed(range(len(words))) if words[n].startswith("--")), None)
    if last is None:
        return False
    flag = flags_by_option().get(words[last])
    takes = "value" if flag is None else flag.options[words[last]]
    return takes == "value" and last == len(words) - 1 and (flag is None or flag.nargs != "?")


def _world_size(launcher: Sequence[str]) -> int | None:
    """Return the processes that the options of torchrun start."""
    counts = {}
    for name in ("nproc[-_]per[-_]node", "nnodes"):
        for word, following in zip(launcher, [*launcher, ""][1:], strict=True):
            option = re.fullmatch(rf"--{name}(?:=(.*))?", word)
            if option is not None:
                counts[name] = option[1] if option[1] is not None else following
    each, nodes = counts.get("nproc[-_]per[-_]node", ""), counts.get("nnodes", "1")
    return int(each) * int(nodes) if each.isdigit() and nodes.isdigit() else None
