"""`mb check`, `mb explain`, `mb rules` and `mb config show`: rules of all packages, on recipes and files."""

from collections.abc import Iterator

from mb_config import ConfigReadError
from mb_config.trainer_api import (
    MAX_MESSAGE_LENGTH,
    CommandInput,
    Examination,
    RuleFilter,
    TargetMachine,
    UnknownRuleError,
    ViewOptions,
    explain_equivalent,
    print_check,
    print_config,
    print_explanation,
    print_rules,
    truncate,
)
from mb_data import DataError
from mb_launch import describe_gpus, read_gpus
from mb_launch.trainer_api import explain_coverage
from mb_models.trainer_api import VocabularyError
from mb_plan import GPU_MEMORY, PlanError, make_plan
from mb_schema.exit_codes import DONE
from mb_trainer.config import ConfigContainer
from mb_trainer.requests import embedding_rows, examine_request
from mb_trainer.run.data_checks import verify_data
from mb_trainer.run.preflight import all_rules
from mb_trainer.run.rules import RULES

PROGRAM = "mb"


def check(given: CommandInput, *, target: TargetMachine, as_json: bool) -> int:
    """Print every problem. Return 1 if any of them rejects the run.

    Raises:
        ConfigReadError: Settings cannot be read, after the problems of the others are printed.
    """
    unread: list[ConfigReadError] = []
    found = examine_request(given, target=target, as_built=True, unread=unread)
    notes = [] if as_json else [*machine_notes(found)]
    return print_check(found, program=PROGRAM, as_json=as_json, notes=notes)


def show(given: CommandInput, *, target: TargetMachine, view: ViewOptions) -> int:
    """Print the resolved configuration as YAML that can be loaded again.

    Raises:
        ConfigError: The configuration violates rules; it is printed before.
        UnknownSectionError: There is no such section.
    """
    return print_config(examine_request(given, target=target), view)


def explain(name: str) -> int:
    """Print a rule, or which rule or section corresponds to a constraint of CloudAI.

    Raises:
        UnknownRuleError: There is neither.
    """
    try:
        return print_explanation(name, all_rules(), program=PROGRAM)
    except UnknownRuleError:
        text = explain_equivalent(explain_coverage(name), RULES)
        if text is None:
            raise
    print(text)
    return DONE


def rules(chosen: RuleFilter, *, as_json: bool) -> int:
    """Print the catalogue of the rules of all packages. Return 1 if no rule matches."""
    return print_rules(all_rules(), chosen, as_json=as_json, program=PROGRAM)


def machine_notes(examination: Examination) -> Iterator[str]:
    """Yield remarks on the files, the memory and the GPUs of a run."""
    config, result = examination.request.config, examination.result
    if not result.errors and not examination.unread:  # a section that a rule rejects cannot be finalized
        problem = data_problem(config)
        if problem is not None:
            yield f"on this machine: {problem}"
        if result.resolved and not any(each.id.startswith("PL") for each in result.problems):
            yield from memory_notes(config, examination.target)
    gpus = () if examination.target.gpu else read_gpus(details=True)
    if gpus:
        yield f"this machine: {describe_gpus(gpus)}"


def data_problem(config: ConfigContainer) -> str | None:
    """Return why the data or the tokenizer of a configuration cannot be used on this machine; None if they can."""
    try:
        config.dataset.finalize()
        verify_data(config)
    except (OSError, DataError, VocabularyError) as error:
        return truncate(str(error), MAX_MESSAGE_LENGTH)
    return None


def memory_notes(config: ConfigContainer, target: TargetMachine) -> Iterator[str]:
    """Yield that the run does not fit the GPUs, if that depends on a vocabulary that only its tokenizer knows."""
    rows = embedding_rows(config)
    if rows is None or target.gpu is None or target.world_size is None:
        return
    try:
        plan = make_plan(config.sections(), world_size=target.world_size, vocab_size=rows)
    except PlanError:  # `plan` reports the reason
        return
    need, memory = plan.needed_bytes, GPU_MEMORY.get(target.gpu)
    if need is not None and memory is not None and need > memory.size:
        yield (
            f"warning: the fullest rank needs {need / 2**30:.1f} GiB, and {target.gpu} has "
            f"{memory.size / 2**30:.1f}: see {PROGRAM} plan"
        )
