"""Command `import-args`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mb_config.container.yaml_file import dump_yaml
from mb_config.megatron_lm.conversion import Conversion, convert
from mb_config.megatron_lm.flag_table import MegatronFlagError, parse_flags
from mb_config.megatron_lm.script import ScriptWords, read_words
from mb_schema.exit_codes import DONE


def import_args(
    words: Sequence[str],
    *,
    variables: Sequence[str],
    custom: Sequence[str] = (),
    out: Path | None,
    program: str,
) -> int:
    """Print or write the configuration, and list on stderr what it does not contain.

    `custom` are flags of the user's own code, which are left out; `program` checks the file afterwards.

    Raises:
        MegatronFlagError: The arguments cannot be read or converted.
        OSError: The script cannot be read, or `out` cannot be written.
    """
    source, script = _source(words, _variables(variables))
    kept, left_out = without_custom(script.words, custom)
    conversion = convert(parse_flags(kept))
    text = render(conversion, source=source)
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    for line in report(conversion, script, out=out, program=program):
        print(line, file=sys.stderr)
    return DONE


def without_custom(words: Sequence[str], custom: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without some flags and their values, and each of these flags with its values.

    Raises:
        MegatronFlagError: One of these flags is not among the words.
    """
    kept: list[str] = []
    left_out: list[list[str]] = []
    is_custom = False
    for word in words:
        if word.startswith("--"):
            is_custom = word.partition("=")[0] in custom
            left_out += [[]] if is_custom else []
        (left_out[-1] if is_custom else kept).append(word)
    missing = sorted({*custom} - {flag[0].partition("=")[0] for flag in left_out})
    if missing:
        raise MegatronFlagError(f"--custom-flag {missing[0]}: is not among the arguments. Leave it out.")
    return kept, [shlex.join(flag) for flag in left_out]


def render(conversion: Conversion, *, source: str) -> str:
    """Return the YAML file. Values that are defaults of Megatron-LM are marked by a comment."""
    lines = [f"# converted from the arguments of Megatron-LM in {source}"]
    path: list[str] = []
    for line in dump_yaml(conversion.nested()).splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        name = line.strip().partition(":")[0]
        path = [*path[:depth], name]
        is_default = ".".join(path) in conversion.defaults and name != "_target_"
        lines.append(f"{line}  # default of Megatron-LM" if is_default else line)
    return "\n".join([*lines, ""])


def report(conversion: Conversion, script: ScriptWords, *, out: Path | None, program: str) -> Iterator[str]:
    """Yield lines on the number of converted values, on flags without a counterpart, and on what to do next."""
    yield (
        f"{len(conversion.given)} values from the arguments, {len(conversion.defaults)} defaults of Megatron-LM"
        f"{'' if out is None else f', written to {out}'}"
    )
    for option, reason in conversion.dropped.items():
        yield f"not converted: {option}: {reason}"
    if script.launcher:
        yield f"options of torchrun, not part of a configuration: {' '.join(script.launcher)}"
    if out is not None:
        yield f"check it with: {program} check {shlex.quote(str(out))} --world-size N --gpu h100"


def _source(words: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ScriptWords]:
    """Return a name of the source, and the words of a script, of a text, or as they were passed."""
    if len(words) == 1 and not words[0].startswith("-"):
        script = Path(words[0])
        if not script.is_file():
            raise MegatronFlagError(
                f"{script}: no such file. Pass a script, or the arguments of pretrain_gpt.py."
            )
        return script.name, read_words(script.read_text(), variables=variables)
    text = words[0] if len(words) == 1 else shlex.join(words)
    return "the command line", read_words(text, variables=variables)


def _variables(words: Sequence[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    # 1, 2, ... are the arguments of the script
    wrong = [name for name, sign, _ in pairs if not sign or not (name.isidentifier() or name.isdecimal())]
    if wrong:
        raise MegatronFlagError(f"--set {wrong[0]}: is not NAME=VALUE.")
    return {name: value for name, _, value in pairs}
