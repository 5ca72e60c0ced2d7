"""Thousands of mutated configurations: each is reported, resolved or planned in time, with documented errors only.

`MB_FUZZ_CASES` sets the number of cases, `MB_FUZZ_SEED` the first seed. A failure prints the seed of its case.
"""

import copy
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

from mb_config import ConfigError, ConfigReadError, Provenance, apply_overrides, smallest_world
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.module_layouts import rules_per_point
from mb_config.preflight.run import effective_dist, preflight
from mb_plan import Axis, PlanError, make_plan, run_sweep
from mb_schema.value_types import hints, options
from mb_trainer.config import ConfigContainer
from mb_trainer.recipes import RECIPES
from mb_trainer.requests import ALL_SECTION_FACTORIES, embedding_rows
from mb_trainer.run.preflight import CHECKS, target_facts
from mb_trainer.run.rules import RULES

CASES = int(os.environ.get("MB_FUZZ_CASES", "150"))
SEED = int(os.environ.get("MB_FUZZ_SEED", "1"))
SLOWEST = 1.0
"""Limit of the processor time of a case, in seconds."""

DOCUMENTED = (ConfigError, ConfigReadError, PlanError)
INTEGERS = (0, 1, 2, 3, -1, 7, 64, 1000, -(10**9), 10**6, 10**9, 10**13, 2**63 - 1, -(2**63))
FLOATS = (0.0, 0.5, 1.0, -1.0, 1e-300, 1e308, math.inf, -math.inf, math.nan, 3, 10**13)
TEXTS = (
    *(
        "",
        "x",
        "4",
        "null",
        " ",
        "a.b",
        "/nonexistent/x",
        "\u00e9\u202e\u4e2d\u6587",
        "\0",
        "\ud800",
        "full",
        "all",
        "1:2 3:4",
    ),
    *("bfloat16", "fp8", "{", "[1,2]", "*", "M*-E", "Et*3|L", "0:64 1M:128", "local", "none", "a2a+p2p"),
    *("a" * 5000, "=" * 5000, "a=b " * 1200, "://" * 1600, "(" * 5000, "t*9" * 1600),
)
PLAIN = (
    *(
        None,
        True,
        False,
        1,
        -1,
        10**13,
        2**63,
        10**400,
        -(10**400),
        10**5000,
        0.5,
        math.nan,
        math.inf,
        "",
        "x",
        "a" * 5000,
    ),
    *([], [None], [1, 2, 3], ["a"], [[]], [{}], [*range(1000)], {}, {"a": 1}, {1: 2}, {None: None}),
    *({"_target_": [1]}, {"_target_": "os.system"}, {"_target_": None}, {"_target_": "a" * 5000}),
)
"""Values that a file can contain."""
OBJECTS = (
    *(1j, b"x", (), ("a", 1), {1}, frozenset(), object(), Path("x"), int, len, Exception("x"), ..., range(3)),
    *(SimpleNamespace(), SimpleNamespace(seq_length="x", tensor_model_parallel_size=None)),
)
"""Values that only Python code can set."""


def typed(chance: random.Random, annotation: Any) -> Any:
    """Return an unusual value of a type."""
    kind = chance.choice(options(annotation))
    origin, arguments = get_origin(kind), get_args(kind)
    simple = {bool: (True, False), int: INTEGERS, float: FLOATS, str: TEXTS, type(None): (None,)}
    if kind in simple:
        return chance.choice(simple[kind])
    if origin is Literal:
        return chance.choice(arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return chance.choice([*kind])
    if origin in (list, tuple, set):
        several = (
            [arguments[0]] * chance.randrange(4) if origin is not tuple or ... in arguments else arguments
        )
        return origin(typed(chance, argument) for argument in several)
    if origin is dict:
        return {
            str(typed(chance, arguments[0])): typed(chance, arguments[1]) for _ in range(chance.randrange(3))
        }
    return copy.deepcopy(chance.choice(PLAIN))


def field_paths(section: Any, path: str = "") -> list[str]:
    """Return the path of each field, including those of nested sections."""
    found = []
    for item in fields(section):
        here = f"{path}.{item.name}" if path else item.name
        value = getattr(section, item.name)
        found += [here, *(field_paths(value, here) if is_dataclass(value) else ())]
    return found


def mutate(chance: random.Random, config: ConfigContainer) -> dict[str, Any]:
    """Set some fields, or whole sections, to values of their type, of another type, or to objects."""
    done = {}
    for path in chance.choices(field_paths(config), k=chance.choice((1, 1, 2, 3, 5))):
        path = path.partition(".")[0] if chance.random() < 0.05 else path
        *parents, name = path.split(".")
        owner: Any = config
        for parent in parents:
            owner = getattr(owner, parent, None)
        if is_dataclass(owner) and hasattr(owner, name):
            wrong = copy.copy(chance.choice((*PLAIN, *OBJECTS)))
            done[path] = wrong if chance.random() < 0.25 else typed(chance, hints(type(owner)).get(name, Any))
            setattr(owner, name, done[path])
    return done


def mutate_data(chance: random.Random, data: Any) -> dict[str, Any]:
    """Replace, add or remove entries of plain data."""
    done = {}
    for _ in range(chance.choice((1, 1, 2, 4))):
        owner, path = data, ""
        while isinstance(owner, dict) and owner:
            key = chance.choice([*owner])
            path += f".{key}"
            if not isinstance(owner[key], dict) or not owner[key] or chance.random() < 0.1:
                break
            owner = owner[key]
        if isinstance(owner, dict):
            key = chance.choice((*owner, "unknown", "a" * 5000, "_target_"))
            value = copy.deepcopy(chance.choice((*PLAIN, *TEXTS, *INTEGERS)))
            done[f"{path} -> {key[:20]}"] = value
            owner[key] = value
            if chance.random() < 0.1:
                del owner[key]
    return done


def examine(chance: random.Random, config: ConfigContainer) -> str:
    """Check, resolve, plan and sweep a case as the commands do. Return the outcome."""
    world_size = chance.choice((1, 2, 8, 64, 1024))
    facts = target_facts(TargetMachine(world_size=world_size), config.env_vars)
    findings = preflight(config, CHECKS, facts=facts, provenance=Provenance())
    json.dumps([item.to_dict() for item in (*findings.problems, *findings.changes)])
    assert all(len(str(problem)) < 5000 for problem in findings.problems)
    if not findings.resolved:
        assert findings.problems
        return "rejected"
    if chance.random() < 0.2:
        sections = {**config.sections(), "dist": effective_dist(config.dist, facts)}
        axes = [
            Axis(path="train.micro_batch_size", values=(1, 2)),
            Axis(path="model.num_layers", values=(4, 10**13)),
        ]
        swept = run_sweep(sections, axes, rules_per_point(RULES, config.model), facts=facts)
        assert {index[1] for index in swept.passing} <= {0}
    smallest_world(config.model)
    json.dumps(
        make_plan(config.sections(), world_size=world_size, vocab_size=embedding_rows(config)).to_dict()
    )
    return "problems" if findings.errors else "planned"


def attempt(seed: int, examples: Mapping[str, ConfigContainer]) -> tuple[str, str]:
    """Return the outcome of a case, and a description of the case."""
    chance = random.Random(seed)
    name = chance.choice([*examples])
    way = chance.choice(("python", "python", "python", "file", "override"))
    config, mutations = copy.deepcopy(examples[name]), {}
    try:
        if way == "python":
            mutations = mutate(chance, config)
        elif way == "file":
            data = config.to_dict(secrets=True)
            mutations = mutate_data(chance, data)
            config = ConfigContainer.from_dict(data)
        else:
            path = chance.choice(field_paths(config))
            text = chance.choice((*TEXTS, *map(repr, PLAIN[:9]), *map(str, INTEGERS)))
            mutations = {path: text}
            apply_overrides(config, [f"{path}={text}"], section_factories=ALL_SECTION_FACTORIES)
        outcome = examine(chance, config)
    except DOCUMENTED as error:
        outcome = type(error).__name__
    return outcome, f"{name} by {way}: { {path: shortened(value) for path, value in mutations.items()} }"


def shortened(value: object) -> str:
    """Return the beginning of the text of a value."""
    try:
        return repr(value)[:80]
    except ValueError:
        return "an integer of thousands of digits"


def test_no_mutation_is_a_crash_or_slow():
    examples = {name: recipe.build() for name, recipe in RECIPES.items()}
    outcomes: Counter[str] = Counter()
    wrong = []
    for seed in range(SEED, SEED + CASES):
        started = time.process_time()
        try:
            outcome, case = attempt(seed, examples)
        except Exception as error:  # noqa: BLE001 (each is a defect; the test reports all of them)
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = "" if place is None else f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
            outcome, case = "crash", f"{type(error).__name__} at {where}: {str(error)[:200]}"
        seconds = time.process_time() - started
        outcomes[outcome] += 1
        if outcome == "crash" or seconds > SLOWEST:
            wrong.append(f"seed {seed}: {seconds:.2f} s, {case}")
    print(dict(outcomes))
    assert not wrong, "\n".join(wrong)
    assert {"planned", "problems", "rejected"} <= {*outcomes}, (
        "the mutations reach no further than the reader"
    )
