"""Search for the fastest settings, with runs whose times are known."""

import math
from dataclasses import replace

import pytest
from test_bench import RESULT

from mb_metrics.bench.command import BenchRunError
from mb_metrics.bench.tuning import Search, override_file, search, table

yaml = pytest.importorskip("yaml")

BASE = replace(RESULT, step_times=(1.0, 1.0, 1.0), tokens=300, peak_memory_gib=2.0, losses=(5.0, 4.0))
SIZES = [(("size=2",), ("size=4",), ("size=8",))]
WORKERS = [(("workers=0",),), (("workers=4",),)]


class Machine:
    """A machine on which a step takes a second, times the factors of its overrides."""

    def __init__(self, factors, *, losses=None, errors=None):
        self.factors, self.losses, self.errors = factors, losses or {}, errors or {}
        self.started, self.numbers, self.now = [], [], 0.0

    def run(self, overrides, number):
        assert number not in self.numbers
        self.numbers.append(number)
        self.started.append(overrides)
        self.now += 10.0
        for each in overrides:
            if each in self.errors:
                raise self.errors[each]
        seconds = 1.0
        for each in overrides:
            seconds *= self.factors.get(each, 1.0)
        losses = next((self.losses[each] for each in overrides if each in self.losses), BASE.losses)
        return replace(BASE, step_times=(seconds,) * 3, losses=losses)

    def clock(self):
        return self.now


def searched(machine, chains, *, seconds=1000.0, **options):
    return search(chains, machine.run, seconds=seconds, clock=machine.clock, **options)


def test_each_setting_is_tried_on_top_of_what_was_faster():
    machine = Machine({"size=2": 0.5, "size=4": 0.4, "size=8": 0.6, "workers=0": 2.0, "workers=4": 0.5})
    found = searched(machine, SIZES + WORKERS)
    assert machine.started == [
        (),
        ("size=2",),
        ("size=4",),
        ("size=8",),
        ("size=4", "workers=0"),
        ("size=4", "workers=4"),
    ]
    assert [trial.outcome for trial in found.trials] == [
        "base",
        "faster",
        "faster",
        "slower",
        "slower",
        "faster",
    ]
    assert (found.kept, found.speedup, found.untried) == (("size=4", "workers=4"), pytest.approx(5.0), [])


def test_a_chain_ends_where_it_is_no_longer_faster_and_the_others_follow():
    machine = Machine({"size=2": 1.01})
    assert searched(machine, SIZES + WORKERS).kept == ()
    assert machine.started == [(), ("size=2",), ("workers=0",), ("workers=4",)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BenchRunError("size=2: failed\ntorch.OutOfMemoryError: CUDA out of memory. Tried"), "out of memory"),
        (BenchRunError("size=2: failed\nlast words", exit_code=-9), "out of memory"),
        (
            BenchRunError("size=2: failed\nValueError: what is wrong", exit_code=1),
            "ValueError: what is wrong",
        ),
    ],
)
def test_a_run_that_fails_is_an_answer_and_not_the_end(error, outcome):
    machine = Machine({"workers=4": 0.5}, errors={"size=2": error})
    found = searched(machine, SIZES + WORKERS)
    assert [trial.outcome for trial in found.trials] == ["base", outcome, "equal", "faster"]
    assert found.kept == ("workers=4",)


def test_what_trains_something_else_is_not_kept():
    machine = Machine({"workers=0": 0.5}, losses={"workers=0": (5.0, 4.2)})
    found = searched(machine, WORKERS)
    assert (found.trials[1].outcome, found.kept) == ("other losses (5.0% apart)", ())


def test_a_setting_that_rules_reject_is_not_started():
    machine = Machine({})
    found = searched(machine, WORKERS, rejected=lambda each: "rejected: V1" if "workers=0" in each else None)
    assert [trial.outcome for trial in found.trials] == ["base", "rejected: V1", "equal"]


def test_the_time_ends_the_search_and_the_rest_is_named():
    machine = Machine({"size=2": 0.5})
    found = searched(machine, SIZES + WORKERS, seconds=25.0)
    assert machine.started == [(), ("size=2",)]
    assert found.untried == [("size=4",), ("size=8",), ("workers=0",), ("workers=4",)]
    assert table(found).splitlines()[-1] == (
        "not tried, the time is over: size=4; size=8; workers=0; workers=4"
    )


def test_a_setting_whose_losses_become_nan_is_not_kept():
    machine = Machine({"workers=4": 0.5}, losses={"workers=4": (5.0, math.nan)})
    found = searched(machine, [(("workers=4",),)])
    assert (found.kept, found.trials[1].outcome) == ((), "other losses (nan% apart)")


def test_the_step_time_of_a_trial_is_its_median():
    run = replace(BASE, step_times=(1.0, 2.0, 3.0, 9.0))
    found = search([], lambda overrides, number: run, seconds=1.0)
    assert table(found).splitlines()[1].split()[2] == "2500.0"


def test_a_base_that_fails_is_an_error():
    with pytest.raises(BenchRunError, match="no such recipe"):
        search([], _fails, seconds=1.0)


def _fails(overrides, number):
    raise BenchRunError("no such recipe")


def test_the_table_and_the_file():
    machine = Machine({"train.micro_batch_size=4": 0.5})
    found = searched(machine, [(("train.micro_batch_size=4",),)])
    assert table(found).splitlines() == [
        "setting                   ms/step  tokens/s   GiB  x best  outcome",
        "(as given)                 1000.0       100  2.00       -  base",
        "train.micro_batch_size=4    500.0       200  2.00   2.000  faster",
    ]
    text = override_file(found, heading=["measured"], fixed=("perf=auto", "++model.transformer.a=true"))
    assert text.startswith("# measured\n")
    assert yaml.safe_load(text) == {
        "perf": "auto",
        "model": {"transformer": {"a": True}},
        "train": {"micro_batch_size": 4},
    }
    assert yaml.safe_load(override_file(Search(), heading=["nothing"])) == {}
