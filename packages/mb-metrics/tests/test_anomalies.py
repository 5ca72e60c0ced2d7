"""Steps that a person should look at: spikes, losses that are not finite, stalls; and what is none of them."""

import json
import random

import pytest
from sample_runs import BEGIN, event, row, write_run

from mb_metrics.report.anomalies import AnomalyFinder, data_command
from mb_metrics.report.incremental_statistics import compute_run_statistics
from mb_metrics.report.page import report_html
from mb_metrics.report.run_reader import read_run
from mb_metrics.report.time_split import split_time


def noisy_run(folder, *, changes=None, slow=None, events=(), steps=400):
    """Write a run whose loss falls with noise; `changes` replaces values of a step, `slow` adds seconds to it."""
    noise, time, rows = random.Random(0), 0.0, []
    for step in range(1, steps + 1):
        time += 1.0 + (slow or {}).get(step, 0.0)
        values = {
            "lm loss": 2 + 200 / (step + 40) + noise.gauss(0, 0.05),
            "grad-norm": noise.uniform(0.8, 1.2),
        }
        rows.append(row(step, time, **values | (changes or {}).get(step, {})))
    return read_run(write_run(folder, rows, events))


def anomalies(run):
    return [(one.kind, one.step, one.last_step) for one in AnomalyFinder().find(run, split_time(run))]


def test_a_usual_run_has_none(tmp_path):
    assert anomalies(noisy_run(tmp_path)) == []


def test_each_kind_is_found_with_its_first_and_last_step(tmp_path):
    changes = {
        100: {"lm loss": 9.0},
        101: {"lm loss": 8.0},
        200: {"lm loss": "NaN"},
        203: {"lm loss": "Infinity"},
        250: {"grad-norm": 30.0},
    }
    run = noisy_run(tmp_path, changes=changes, slow={300: 20.0})
    assert anomalies(run) == [
        ("spike", 100, 101),
        ("NaN", 200, 203),
        ("spike", 250, 250),
        ("stall", 300, 300),
    ]
    assert [one.text.partition(", usually")[0] for one in AnomalyFinder().find(run, split_time(run))] == [
        "lm loss rose to 9",
        "lm loss is NaN or infinite, until step 203",
        "gradient norm rose to 30",
        "step took 21 s",
    ]


@pytest.mark.parametrize("kind", ["evaluation", "save", "resume"])
def test_time_of_an_evaluation_a_save_or_a_start_is_no_stall(tmp_path, kind):
    events = [event("start", 0, step=0), event(kind, 319.5, step=299, seconds=20.0)]
    assert anomalies(noisy_run(tmp_path, slow={300: 20.0}, events=events)) == []


def test_a_level_that_stays_high_is_one_anomaly_until_it_is_usual(tmp_path):
    changes = {step: {"lm loss": 4.0 + step % 2 * 0.1} for step in range(200, 401)}
    ((kind, first, last),) = anomalies(noisy_run(tmp_path, changes=changes))
    assert (kind, first) == ("spike", 200)
    assert last < 400


def test_the_page_lists_them_first_with_the_command_that_shows_the_data(tmp_path):
    folder = tmp_path / "my run"
    run = noisy_run(folder, changes={100: {"lm loss": 9.0}})
    assert data_command(run, 100) is None  # a metrics file of another trainer
    assert "Data of the step" not in report_html([run], now=BEGIN + 500)
    (folder / "run_config.yaml").write_text("train:\n  train_iters: 400\n")
    page = report_html([read_run(folder)], now=BEGIN + 500)
    first = page[page.index("<h2>") : page.index("<h2>Summary")]
    assert f"<code>mb data at &#x27;{folder}&#x27; --step 100</code>" in first
    assert "Data of the step" in first


def test_the_statistics_have_them_as_json(tmp_path):
    run = noisy_run(tmp_path, changes={200: {"lm loss": "NaN"}})
    (found,) = compute_run_statistics(run, now=BEGIN + 500).as_json()["anomalies"]
    assert json.dumps(found) == json.dumps(
        {"kind": "NaN", "metric": "lm loss", "step": 200, "last_step": 200, "value": None, "usual": None}
    )
