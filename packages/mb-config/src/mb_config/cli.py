"""Command line `mb-config`: check, show and explain a YAML configuration without torch."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import SimpleNamespace

from mb_config._gpu_names import UnknownGpuError
from mb_config.display import show
from mb_config.errors import ConfigReadError
from mb_config.explanation import explain
from mb_config.facts import collect_facts
from mb_config.non_defaults import non_default_values
from mb_config.plain_check import PlainCheckResult, check_plain_config
from mb_config.plain_config import PlainConfig, read_plain_config
from mb_config.problems import ConfigError
from mb_config.resolve import runtime_config_update
from mb_config.rules import RULES
from mb_config.rules.hardware import gpu_short_name
from mb_config.shell_line import without_dashes

_EXAMPLES = """examples:
  mb-config check run.yaml train.global_batch_size=64 --world-size 8
  mb-config show run.yaml --origin --world-size 8
  mb-config explain V242

exit codes: 0 no errors, 1 errors, 2 the input could not be read
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if any(text.startswith("-") or options.command == "explain" for text in rest):
        line = without_dashes(rest)
        advice = "" if line is None else f"; an override has no dashes in front: write {line}"
        parser.error(f"unrecognized arguments: {' '.join(rest)}{advice}")
    commands = {"check": _check, "show": _show, "explain": _explain}
    try:
        if options.command != "explain":
            options.overrides += (
                rest  # argparse accepts no second group of positional arguments after an option
            )
        return commands[options.command](options)
    except ConfigReadError as error:
        print(error, file=sys.stderr)
        return 2
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mb-config",
        description="Check, show and explain the configuration of a Megatron trainer.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checking = commands.add_parser("check", help="report every problem of a file")
    checking.add_argument("--world-size", type=int, metavar="N", help="number of processes to check for")
    checking.add_argument(
        "--gpu", metavar="NAME", type=_gpu, help="GPUs to check for: h100, or a name that nvidia-smi prints"
    )
    checking.add_argument(
        "--te", metavar="VERSION", type=_version, help="version of Transformer Engine to check for"
    )
    checking.add_argument("--json", action="store_true", help="print one JSON object")
    showing = commands.add_parser("show", help="print the complete configuration")
    showing.add_argument("--origin", action="store_true", help="print the origin of each value")
    showing.add_argument(
        "--world-size", type=int, metavar="N", help="resolve for this number of processes first"
    )
    showing.add_argument(
        "--non-default",
        action="store_true",
        help="print only values that differ from Megatron Core, and other sections",
    )
    for command in (checking, showing):
        command.add_argument("file", metavar="FILE", help="YAML file")
        command.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="changes, in Hydra's grammar")
    explaining = commands.add_parser("explain", help="explain a rule")
    explaining.add_argument("rule", metavar="RULE", help="id of the rule, such as V242")
    return parser


def _version(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)*(\.?[A-Za-z]+\d*)*(\+[\w.-]+)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 2.20")
    return text


def _gpu(text: str) -> str:
    try:
        return gpu_short_name(text, field="--gpu")
    except UnknownGpuError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--gpu: ")) from error  # argparse adds it


def _check(options: argparse.Namespace) -> int:
    plain = read_plain_config(options.file, options.overrides)
    facts = collect_facts(
        world_size=options.world_size,
        env=os.environ,
        env_vars=plain.config.env_vars,
        versions={"transformer_engine": options.te} if options.te else {},
        gpu=options.gpu,
    )
    findings = check_plain_config(plain, RULES, facts=facts)
    if options.json:
        print(json.dumps(_report(plain, findings), indent=2))
    else:
        for problem in findings.problems:
            print(f"{problem.severity} {problem.id}: {problem}")
        print(_summary(plain, findings, world_size=options.world_size), file=sys.stderr)
    return 1 if any(problem.severity == "error" for problem in findings.problems) else 0


def _show(options: argparse.Namespace) -> int:
    plain = read_plain_config(options.file, options.overrides)
    if options.world_size is not None:
        runtime_config_update(
            plain.config, world_size=options.world_size, provenance=plain.provenance, rules=()
        )
    if options.non_default:
        print(non_default_values(SimpleNamespace(**plain.sections())))
    else:
        print(show(plain.config, plain.provenance, origin=options.origin), end="")
    return 0


def _explain(options: argparse.Namespace) -> int:
    by_id = {rule.id.lower(): rule for rule in RULES}
    rule = by_id.get(options.rule.lower())
    if rule is None:
        near = get_close_matches(options.rule.lower(), by_id, n=3)
        hint = f"; did you mean {' or '.join(by_id[name].id for name in near)}?" if near else ""
        raise ConfigReadError(f"unknown rule {options.rule!r}{hint}")
    print(explain(rule))
    return 0


def _report(plain: PlainConfig, findings: PlainCheckResult) -> dict[str, object]:
    return {
        "problems": [problem.to_dict() for problem in findings.problems],
        "changes": [change.to_dict() for change in findings.changes],
        "unresolved": findings.unresolved,
        "checked": list(plain.known),
        "checked_by_shared_rules_only": list(plain.external),
        "absent": list(plain.absent),
        "doubtful": list(plain.suspicious_keys),
    }


def _summary(plain: PlainConfig, findings: PlainCheckResult, *, world_size: int | None) -> str:
    errors = sum(problem.severity == "error" for problem in findings.problems)
    lines = [f"{errors} errors, {len(findings.problems) - errors} warnings"]
    if plain.external:
        lines.append(
            f"checked by the shared rules only: {', '.join(plain.external)} (sections of other packages)"
        )
    if plain.absent:
        lines.append(f"not checked, because absent from the file: {', '.join(plain.absent)}")
    if plain.suspicious_keys:
        lines.append(f"unknown to Megatron Core: {', '.join(plain.suspicious_keys)}")
    if world_size is not None and findings.unresolved:
        lines.append(f"checked as written, not as resolved: {findings.unresolved}")
    if world_size is None:
        lines.append("rules on the number of processes were skipped: pass --world-size")
    return "\n".join(lines)
