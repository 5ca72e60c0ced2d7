"""Command `import-args`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from mb_config.container.yaml_file import dump_yaml
from mb_config.megatron_lm.conversion import MegatronConversion, convert_script
from mb_config.megatron_lm.flag_table import MegatronFlagError
from mb_config.megatron_lm.script import ScriptWords, carried_variables, read_test_case, read_words
from mb_schema.exit_codes import DONE
from mb_schema.yaml_settings import load_settings


def import_args(
    words: Sequence[str],
    *,
    variables: Sequence[str],
    custom: Sequence[str] = (),
    ignore_unknown: bool = False,
    out: Path | None,
    program: str,
) -> int:
    """Print or write the configuration, and list on stderr what it does not contain.

    `custom` are flags of the user's own code, which are left out, with `ignore_unknown` all that Megatron-LM does not
    know; `program` checks the file afterwards.

    Raises:
        MegatronFlagError: The arguments cannot be read or converted.
        OSError: The script cannot be read, or `out` cannot be written.
    """
    source, script = read_source(words, assigned_variables(variables))
    conversion = convert_script(script, custom=custom, ignore_unknown=ignore_unknown)
    text = render(conversion, source=source)
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    for line in report(conversion, script, out=out, program=program):
        print(line, file=sys.stderr)
    return DONE


def render(conversion: MegatronConversion, *, source: str) -> str:
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


def report(
    conversion: MegatronConversion, script: ScriptWords, *, out: Path | None, program: str
) -> Iterator[str]:
    """Yield lines on the number of converted values, on what has no counterpart, and on what to do next."""
    yield (
        f"{len(conversion.given)} values from the arguments, {len(conversion.defaults)} defaults of Megatron-LM"
        f"{'' if out is None else f', written to {out}'}"
    )
    yield from omissions(conversion, script)
    if script.launcher:
        yield f"options of torchrun, not part of a configuration: {' '.join(script.launcher)}"
    if out is not None:
        fused = {**conversion.defaults, **conversion.given}.get("model.gradient_accumulation_fusion")
        apex = " --apex" if fused else ""  # without it Megatron-LM rejects the fusion, its default
        yield (
            f"check it with: {program} check {shlex.quote(str(out))} --world-size {script.world_size or 'N'} "
            f"--gpu h100{apex}"
        )


def omissions(conversion: MegatronConversion, script: ScriptWords) -> Iterator[str]:
    """Yield lines on what a script contains and the configuration does not."""
    for note in script.notes:
        yield f"note: {note}"
    for flag in conversion.left_out:
        yield f"left out: {flag}"
    for option, reason in conversion.dropped.items():
        yield f"not converted: {option}: {reason}"
    _, named = carried_variables(script.environment)
    for name, reason in named.items():
        yield f"environment variable not carried: {name}: {reason}"


def read_source(words: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ScriptWords]:
    """Return a name of the source, and the arguments of a script, of a test case, of a text, or as they were passed.

    Words after a script are its arguments.
    """
    if words[0].startswith("-") or len(words[0].split()) > 1:
        text = words[0] if len(words) == 1 else shlex.join(words)
        return "the command line", read_words(text, variables=variables)
    script = Path(words[0])
    if not script.is_file():
        raise MegatronFlagError(
            f"{script}: no such file. Pass a script, or the arguments of pretrain_gpt.py."
        )
    if script.suffix in (".yaml", ".yml"):
        settings = read_yaml(script)
        further = read_words(shlex.join(words[1:])).words if len(words) > 1 else ()
        found = read_test_case(settings, variables=variables)
        return script.name, replace(found, words=(*found.words, *further))
    text = script.read_text(encoding="utf-8", errors="replace")
    return script.name, read_words(text, variables=variables, arguments=words[1:], path=script)


def read_yaml(path: Path) -> Mapping[str, object]:
    """Return the contents of a YAML file of Megatron-LM's functional tests."""
    try:
        settings = load_settings(path.read_text(encoding="utf-8"), yaml)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MegatronFlagError(f"{path}: is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(settings, dict):
        raise MegatronFlagError(
            f"{path}: is not a test case of Megatron-LM, which is a mapping with MODEL_ARGS."
        )
    return settings


def assigned_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the values of variables from words such as `NAME=VALUE`."""
    pairs = [word.partition("=") for word in words]
    # 1, 2, ... are the arguments of the script
    wrong = [name for name, sign, _ in pairs if not sign or not (name.isidentifier() or name.isdecimal())]
    if wrong:
        raise MegatronFlagError(f"--set {wrong[0]}: is not NAME=VALUE.")
    return {name: value for name, _, value in pairs}
