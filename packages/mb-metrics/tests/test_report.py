"""Statistics and report page: correct numbers, one small file without network, notes on omitted data."""

import base64
import dataclasses
import json
import math
import re
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import BEGIN, event, row, steady, write_run

from mb_metrics.report.formatting import clock, duration, percent, short, ticks, time_ticks
from mb_metrics.report.incremental_statistics import compute_run_statistics, run_status
from mb_metrics.report.page import ReportTooLargeError, report_html, write_report
from mb_metrics.report.run_history import RunConfiguration
from mb_metrics.report.run_reader import read_run, read_run_from_log
from mb_metrics.report.run_settings import BaselineConfiguration
from mb_metrics.report.series import Bucket, Series, envelope, mean_of
from mb_metrics.report.time_split import split_time
from mb_metrics.report.watch import watch_text

NOW = BEGIN + 1000


@pytest.fixture
def full_run(tmp_path):
    rows = [
        *steady(1, 4, 2, **{"grad-norm": 1.0, "learning-rate": 0.1, "memory/stage 0/bytes": 5.0}),
        row(5, 6, lm_loss="NaN", skipped=True, **{"throughput/tokens_per_sec": 100.0, "throughput/mfu": 0.4}),
        row(5, 8, lm_loss_validation=3.0),
        *steady(6, 10, 9, lm_loss=1.0),
    ]
    events = [
        event("start", 0, step=0),
        event("save", 15, step=10),
        event("stop", 15, step=10, reason="finished"),
    ]
    return read_run(
        write_run(
            tmp_path / "full",
            rows,
            events,
            run_config__yaml="train:\n  train_iters: 10\n",
            log__txt="warning: <b>\n",
        )
    )


def test_run_statistics(full_run):
    found = compute_run_statistics(full_run, now=NOW).as_json()
    assert found["losses"] == {
        "lm loss": {
            "first": 2.0,
            "last": 1.0,
            "lowest": 1.0,
            "lowest_step": 6,
            "recent_mean": pytest.approx(13 / 9),
            "recent_steps": 10,
        }
    }
    assert found["validation"]["lm loss"]["lowest"] == 3.0
    assert {name: round(seconds, 6) for name, seconds in found["seconds"].items()} == {
        "training": 10.0,
        "evaluating": 2.0,
        "saving": 2.0,
        "starting": 1.0,
        "lost": 0.0,
        "other": 0.0,
        "stopped": 0.0,
    }
    assert {
        name: found[name] for name in ("status", "steps", "total_steps", "skipped_steps", "nonfinite_steps")
    } == {
        "status": "complete",
        "steps": 10,
        "total_steps": 10,
        "skipped_steps": 1,
        "nonfinite_steps": 1,
    }
    assert (found["mfu"], found["tokens_per_second"], found["goodput"]) == (
        0.4,
        100.0,
        pytest.approx(10 / 15),
    )
    assert found["saves"] == {"count": 1, "seconds": 2.0, "longest": 2.0}
    assert found["warnings"] == [
        "lm loss was NaN or infinite in one step, first in step 5.",
        "The optimizer skipped one step, first step 5.",
        "warning: <b>",
    ]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_last_loss_may_be_no_number(tmp_path):
    found = compute_run_statistics(
        read_run(write_run(tmp_path, [row(1, 0, lm_loss="Infinity")])), now=NOW
    ).as_json()
    assert found["losses"]["lm loss"] == {
        "first": None,
        "last": None,
        "lowest": None,
        "lowest_step": None,
        "recent_mean": None,
        "recent_steps": 1,
    }


@pytest.mark.parametrize(
    ("events", "seconds_later", "status"),
    [
        ([], 30, "running"),
        ([], 600, "silent"),
        ([event("stop", 5, reason="finished")], 600, "complete"),
        ([event("stop", 5, reason="early_stop")], 600, "complete"),
        ([event("stop", 5, reason="signal")], 600, "stopped"),
        ([event("stop", 5, reason="failed")], 600, "failed"),
        ([event("stop", 5, reason="signal"), event("resume", 6)], 30, "running"),
    ],
    ids=range(7),
)
def test_the_status_of_a_run(tmp_path, events, seconds_later, status):
    run = read_run(write_run(tmp_path, steady(1, 5, 1), [event("start", 0), *events]))
    found = compute_run_statistics(run, now=BEGIN + 5 + seconds_later)
    assert found.status == status
    assert any("nothing was written" in text for text in found.warnings) == (status == "silent")
    assert any("log.txt" in text for text in found.warnings) == (status == "failed")


@pytest.mark.parametrize(
    ("reason", "restarts"), [("finished", 0), ("early_stop", 0), ("failed", 1), ("signal", 1)]
)
def test_a_finished_run_that_is_continued_with_more_steps_is_no_restart(tmp_path, reason, restarts):
    rows = [*steady(1, 5, 1), *steady(6, 9, 20)]
    events = [event("start", 0), event("stop", 6, step=5, reason=reason), event("resume", 19, step=5)]
    assert (
        compute_run_statistics(read_run(write_run(tmp_path, rows, events)), now=BEGIN + 30).restarts
        == restarts
    )


def test_metrics_alone_show_that_all_steps_are_done(tmp_path):
    run = read_run(write_run(tmp_path, steady(1, 5, 1), run_config__yaml="  train_iters: 5\n"))
    assert run_status(run, split_time(run), now=NOW) == ("complete", None)


def test_slow_intervals_are_waited_for(tmp_path):
    rows = steady(1, 40, 1, seconds=60)
    for at in (9, 19, 29, 39):
        rows[at]["iteration-time"] = 60.0
    run = read_run(write_run(tmp_path, rows))
    assert compute_run_statistics(run, now=BEGIN + 40 * 60 + 1500).status == "running"


def test_time_left_counts_evaluations_and_restarts_after_a_resume(tmp_path):
    rows = [
        *steady(1, 10, 1),
        *steady(11, 12, 103),
        row(12, 106, lm_loss_validation=1.0),
        *steady(13, 14, 107),
    ]
    events = [event("start", 0), event("resume", 100)]
    run = read_run(write_run(tmp_path, rows, events, run_config__yaml="  train_iters: 20\n"))
    assert compute_run_statistics(run, now=BEGIN + 110).seconds_left == pytest.approx(6 * (108 - 103) / 3)
    write_run(tmp_path, rows[:11], events)
    assert compute_run_statistics(read_run(tmp_path), now=BEGIN + 110).seconds_left is None


class Page(HTMLParser):
    """Parser that collects the resources of a page and checks that elements are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "input"):
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_one_file_without_network_and_well_formed(full_run, tmp_path):
    path = write_report([full_run], tmp_path / "new" / "report.html", now=NOW)
    text = path.read_text()
    page = Page(text)
    assert (page.fetched, page.open) == ([], [])
    links = re.findall(r"https?://[^\s)]+|@import|url\(", text)
    assert links == ["https://github.com/leeoniya/uPlot"]  # a comment of uPlot
    headings = re.findall(r"<h[123]>([^<]+)", text)
    assert headings[:5] == ["full", "Look at first", "Summary", "Time by activity", "Curves"]
    assert {
        "lm loss",
        "Learning rate",
        "Gradient norm",
        "Memory: bytes",
        "Recorded once",
    } <= {head.strip() for head in headings}
    once = re.findall(r'<th scope="row">([^<]+)</th><td>', text[text.index("Recorded once") :])
    assert once[:3] == ["lm loss on validation data", "Tokens per second", "MFU"]
    assert "1 value was NaN or infinite, marked in red at the top." in page.text
    assert "warning: <b>" in page.text


def data_of(page):
    """Return the data of the charts in a page."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def chart_of(page, title):
    """Return the data of a chart."""
    return next(chart for chart in data_of(page)["charts"] if chart["title"] == title)


def test_a_chart_of_rates_states_their_window(tmp_path):
    note = "Mean of up to 100 steps; TFLOP/s and MFU are those of a log interval."
    for window, expected in ({}, False), ({"throughput/window_steps": 100.0}, True):
        rows = [row(step, step, **{"throughput/tokens_per_sec": 9.0}, **window) for step in (1, 2)]
        page = report_html([read_run(write_run(tmp_path / f"run{expected}", rows))], now=NOW)
        assert (note in Page(page).text) == expected


def test_the_chart_library_is_the_released_one_and_has_its_license():
    vendor = files("mb_metrics.report") / "vendor"
    assert {file.name: sha256(file.read_bytes()).hexdigest()[:16] for file in vendor.iterdir()} == {
        "LICENSE.uPlot": "8f989229699b4fe2",
        "uPlot.iife.min.js": "19c8d4c6ad88929a",
        "uPlot.min.css": "df630c6a8d6f8eea",
    }  # of uplot 1.6.32 in the registry of npm


def test_a_browser_runs_the_script_of_the_page_and_no_other(full_run):
    page = report_html([full_run], now=NOW)
    script = re.search(r"</script><script>(.*)</script></body>", page, re.DOTALL)[1]
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.split("; ")[:2] == ["default-src 'none'", f"script-src 'sha256-{digest}'"]
    assert "connect-src 'none'" in policy


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_of_metrics_and_settings_cannot_add_elements(tmp_path):
    rows = [row(step, step, **{HOSTILE: float(step), "lm loss": 1.0}) for step in (1, 2, 3)]
    events = [event("start", 0, step=0), event("resume", 5, step=2, seconds=1.0), event(HOSTILE, 6, step=3)]
    run = read_run(write_run(tmp_path / "<b>run", rows, events, log__txt=f"warning: {HOSTILE}\n"))
    settings = RunConfiguration(settings={HOSTILE: HOSTILE}, baseline=HOSTILE, changes={HOSTILE: (1, 2)})
    page = report_html([dataclasses.replace(run, configuration=settings)] * 2, now=NOW)
    assert (Page(page).fetched, page.count("<script"), "<img" in page, "<b>run" in page) == (
        *([], 2, False, False),
    )


def test_the_x_axis_may_be_time_or_tokens(tmp_path):
    rows = [dict(each, **{"samples vs steps": 8 * each["step"]}) for each in steady(1, 3, 1)]
    later = [dict(each, **{"samples vs steps": 8 * each["step"]}) for each in steady(4, 5, 102)]
    events = [event("start", 0, step=0), event("stop", 3, step=3), event("resume", 101, step=3)]
    run = read_run(write_run(tmp_path, rows + later, events, run_config__yaml="model:\n  seq_length: 16\n"))
    assert data_of(report_html([run], now=NOW))["runs"][0]["axes"] == {
        "step": [1, 2, 3, 4, 5],
        "time": [1, 2, 3, 4, 5],  # without the time between the stop and the resume
        "tokens": [128, 256, 384, 512, 640],
    }


def test_marks_are_restarts_saves_evaluations_and_anomalies(full_run):
    marks = data_of(report_html([full_run], now=NOW))["marks"]
    assert [(mark["kind"], mark["step"]) for mark in marks] == [
        ("save", 10),
        ("evaluation", 5),
        ("anomaly", 5),
    ]


def test_the_spread_over_ranks_is_an_area(tmp_path):
    values = {"straggler/work-ms-min": 300.0, "straggler/work-ms-max": 340.0}
    run = read_run(write_run(tmp_path, steady(1, 3, 1, **values)))
    chart = chart_of(report_html([run], now=NOW), "Work of the ranks per step")
    assert (chart["fill"], [curve["label"] for curve in chart["curves"]]) == (
        *(True, ["fastest rank", "slowest rank"]),
    )


def test_changes_by_the_user_are_apart_from_those_by_resolving(tmp_path):
    read_run_with_settings = pytest.importorskip("mb_metrics.cli.report").read_run_with_settings  # needs yaml
    (tmp_path / "run_config.yaml").write_text("a: {lr: 2, b: 3, c: 1}\n")
    events = [event("start", 0, step=0, set_by_user=["a.lr"])]
    write_run(tmp_path, steady(1, 2, 1), events)
    baseline = BaselineConfiguration(name="tiny", settings={"a": {"lr": 1, "b": 1, "c": 1}})
    page = report_html([read_run_with_settings(tmp_path, baselines={tmp_path: baseline})], now=NOW)
    by_user, resolved = page.split("<h4>By you</h4>")[1].split("<h4>By resolving</h4>")
    assert (by_user.count("a.lr"), by_user.count("a.b"), "a.b" in resolved.split("<details>")[0]) == (
        1,
        0,
        True,
    )


def test_a_page_of_a_run_before_its_first_step(tmp_path):
    run = read_run(write_run(tmp_path, [], [event("start", 0)]))
    assert "No curve yet: no metric has two values to plot." in report_html([run], now=NOW)


def test_several_runs_are_compared(tmp_path):
    runs = [
        read_run(
            write_run(tmp_path / name, steady(1, 5, 1, lm_loss=loss)),
            configuration=RunConfiguration(
                settings={"a.lr": loss, "a.b": None}, baseline="tiny", changes=changes
            ),
        )
        for name, loss, changes in [("x/run", 1.0, {"a.lr": (True, 1.0)}), ("y/run", 2.0, {})]
    ]
    text = report_html(runs, now=NOW)
    page = Page(text)
    assert "2 runs compared" in page.text
    assert "2 (+1, +100.0%)" in page.text
    difference = chart_of(text, f"lm loss: difference from run ({tmp_path / 'x/run'})")
    assert [curve["y"] for curve in difference["curves"]] == [[1] * 5]
    assert page.text.count(f"run ({tmp_path / 'x/run'})") > 3
    table = re.search(r"Differences between the runs</h3>(.*?)</table>", text)[1]
    assert re.findall(r"<code>([^<]+)</code>", table) == ["a.lr", "1.0", "2.0"]
    assert (
        re.findall(r"changed from tiny</h3>(.*?)<h3>|<details>", text + "<h3>")[0].count("<code>true</code>")
        == 1
    )
    assert "<p>Nothing.</p>" in text
    assert "a.b: null" in page.text


def test_differences_of_runs_have_the_units_of_their_values(tmp_path):
    rates = ("throughput/tokens_per_sec", "throughput/mfu")
    runs = [
        read_run(write_run(tmp_path / name, steady(1, 5, 1, **dict(zip(rates, speed, strict=True)))))
        for name, speed in (("a", (500_000.0, 0.4)), ("b", (400_000.0, 0.3)))
    ]
    text = Page(report_html(runs, now=NOW)).text
    assert "400 k (-100 k, -20.0%)" in text
    assert "30.0 % (-10.0 points, -25.0%)" in text


def test_settings_that_are_not_parsed_are_shown_as_text(full_run):
    assert "train_iters: 10" in Page(report_html([full_run], now=NOW)).text


def test_a_log_has_a_page(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("Step Time : 0.50s GPU utilization: 1.0TFLOP/s/GPU\n" * 3)
    page = Page(report_html([read_run_from_log(path)], now=NOW))
    assert "a log of cloudai" in page.text
    assert "Model TFLOP/s per device" in page.text


def test_a_long_run_makes_a_small_page_that_explains_its_points(tmp_path):
    rows = steady(1, 20_000, 1)
    rows[7777]["lm loss"] = 99.0
    text = report_html([read_run(write_run(tmp_path, rows))], now=NOW)
    assert len(text) < 150_000
    assert "Each point represents up to 50 values: the line is their mean, the band their range." in text
    assert 99 in chart_of(text, "lm loss")["curves"][0]["high"]


def test_metrics_beyond_the_limit_are_named_and_not_plotted(tmp_path):
    losses = {f"loss_{number}": 1.0 for number in range(14)}
    memory = {
        f"memory/mem-{name}-gigabytes": 1.0
        for name in ("active", "max-allocated", "inactive", "max-reserved")
    }
    page = Page(report_html([read_run(write_run(tmp_path, [row(1, 0, **losses, **memory)]))], now=NOW))
    assert "Not plotted: loss 12, loss 13, memory: mem-inactive-gigabytes." in page.text
    assert page.text.index("Memory: mem-max-reserved") < page.text.index("Memory: mem-max-allocated")


def test_many_runs_make_coarser_curves_or_are_rejected(tmp_path):
    rows = [
        row(step, step, **{f"loss_{number}": 0.123456 * step for number in range(4)})
        for step in range(1, 401)
    ]
    run = read_run(write_run(tmp_path, rows))
    fine = len(report_html([run] * 3, now=NOW).encode())
    assert len(report_html([run] * 3, now=NOW, largest=fine - 40_000).encode()) < fine - 40_000
    with pytest.raises(
        ReportTooLargeError, match=r"3 runs exceed the page limit of 0\.02 MB\. Compare fewer"
    ):
        report_html([run] * 3, now=NOW, largest=20_000)
    with pytest.raises(ValueError, match="runs is empty"):
        report_html([], now=NOW)


values = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf]))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, 500), values, max_size=60), st.integers(1, 40))
def test_an_envelope_leaves_no_value_out(found, buckets):
    pairs = sorted(found.items())
    shape = envelope(Series.of(pairs), buckets=buckets)
    finite = [value for _, value in pairs if math.isfinite(value)]
    assert len(shape.buckets) <= max(buckets, 1)
    assert min((one.low for one in shape.buckets), default=None) == min(finite, default=None)
    assert max((one.high for one in shape.buckets), default=None) == max(finite, default=None)
    assert shape.nonfinite_count == len(pairs) - len(finite)
    assert bool(shape.nonfinite_steps) == (len(finite) < len(pairs))
    steps = [one.step for one in shape.buckets]
    assert steps == sorted(steps)
    assert all(one.low <= one.mean <= one.high or math.isclose(one.mean, one.low) for one in shape.buckets)


def test_a_short_series_is_shown_as_it_is():
    shape = envelope(Series.of([(1, 2.0), (9, math.nan), (10, 4.0)]), buckets=3)
    assert shape.buckets == (Bucket(1.0, 2.0, 2.0, 2.0), Bucket(10.0, 4.0, 4.0, 4.0))
    assert (shape.nonfinite_steps, shape.steps_per_bucket) == ((9,), 1)


def test_numbers_are_formatted():
    assert [
        short(value) for value in (None, 0, 2.34567, 12345.0, 1e6, -0.5, 3e-5, math.nan, math.inf, -math.inf)
    ] == [*("?", "0", "2.346", "12.3 k", "1 M", "-0.5", "3e-5", "NaN", "∞", "-∞")]
    assert [duration(seconds) for seconds in (None, 0.25, 42, 185, 7800, 100 * 3600, 3600)] == [
        *("?", "0.25 s", "42 s", "3 min 5 s", "2 h 10 min", "4 d 4 h", "1 h")
    ]
    assert (percent(0.973), percent(None), len(clock(0.0))) == ("97.3 %", "?", 19)


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9))
def test_ticks_are_few_and_inside(low, span):
    found = ticks(low, low + span)
    assert len(found) <= 6
    assert all(low - span / 100 <= tick <= low + span * 1.01 for tick in found)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3, 4), (50, 6), (7200, 5), (86400 * 9, 5), (0.0, 1)],
    ids=lambda value: str(value),
)
def test_ticks_of_time_are_whole_units(seconds, expected):
    found = time_ticks(seconds)
    assert (found[0], len(found)) == (0, expected)


def test_rates_are_medians(tmp_path):
    rows = [{"step": step, "time": float(step), "throughput/mfu": step / 10} for step in range(1, 5)]
    assert compute_run_statistics(read_run(write_run(tmp_path, rows)), now=NOW).mfu == 0.25


def test_a_report_shows_no_secret_of_the_configuration_or_the_log(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "lm loss": 2.0}\n')
    (tmp_path / "log.txt").write_text("warning: OPENAI_API_KEY=c0ffee-in-clear is set\n")
    settings = {"env_vars.DB_PASS": "c0ffee-in-clear", "env_vars.NCCL_ALGO": "Ring"}
    changes = {"env_vars.DB_PASS": (None, "c0ffee-in-clear")}
    run = read_run(tmp_path, configuration=RunConfiguration(settings=settings, changes=changes))
    write_report([run], tmp_path / "report.html", now=2.0)
    page = (tmp_path / "report.html").read_text()
    assert "OPENAI_API_KEY" in page
    assert "Ring" in page
    assert "c0ffee-in-clear" not in page


def test_the_text_of_settings_that_are_not_parsed_shows_no_secret(tmp_path):
    text = "logger:\n  comet_api_key: c0ffee-in-clear\n  wandb_project: gpt\n"
    folder = write_run(tmp_path / "a", [{"step": 1, "time": 1.0, "lm loss": 2.0}], run_config__yaml=text)
    page = report_html([read_run(folder)], now=2.0)
    assert "wandb_project: gpt" in page
    assert "c0ffee-in-clear" not in page


@pytest.mark.parametrize("name", ["loss", "grad-norm", "x/y"])
def test_values_near_the_largest_float_are_shown(name, tmp_path):
    rows = [
        {"step": step, "time": float(step), name: sign * 1.7e308}
        for step, sign in enumerate((1, 1, 1, -1), 1)
    ]
    run = read_run(write_run(tmp_path, rows))
    statistics = compute_run_statistics(run, now=NOW)
    assert json.dumps(statistics.as_json(), allow_nan=False)
    assert "</html>" in report_html([run], now=NOW)
    assert watch_text(run, now=NOW)
    assert mean_of([1.7e308] * 4) == pytest.approx(1.7e308)


def test_the_metric_that_was_not_finite_is_named(tmp_path):
    rows = [{"step": step, "time": float(step), "lm loss": 2.0, "ratio": "Infinity"} for step in (1, 2)]
    assert compute_run_statistics(read_run(write_run(tmp_path / "a", rows)), now=NOW).nonfinite_steps == 0
    rows = [{**each, "z_loss": "NaN"} for each in rows]
    warnings = compute_run_statistics(read_run(write_run(tmp_path / "b", rows)), now=NOW).warnings
    assert warnings[0] == "z_loss was NaN or infinite in 2 steps, first in step 1."


def test_speed_and_step_time_are_of_the_same_steps(tmp_path):
    """A rate over a long window has other steps than the median; 100 tokens in steps of 2 s are 50 a second."""
    rates = {"throughput/tokens_per_sec": 10.0, "throughput/batches_per_sec": 0.1}
    rows = [{"step": step, "time": 2.0 * step, "lm loss": 2.0, **rates} for step in range(1, 10)]
    found = compute_run_statistics(read_run(write_run(tmp_path, rows)), now=NOW)
    assert found.step_seconds.median == 2.0
    assert found.tokens_per_second == pytest.approx(50.0)


def test_the_speed_of_a_run_whose_batch_size_has_changed_is_one_that_it_had(tmp_path):
    """12 steps of 100 tokens in 1 s, then 8 of 200 in 4 s: the median step takes 1 s, but has no 200 tokens."""
    rows, time = [], 0.0
    for step in range(1, 21):
        tokens, seconds = (100, 1.0) if step <= 12 else (200, 4.0)
        time += seconds
        rows.append({"step": step, "time": time, "lm loss": 2.0})
        if step % 4 == 0 if step <= 12 else step % 2 == 0:
            rows[-1] |= {
                "throughput/tokens_per_sec": tokens / seconds,
                "throughput/batches_per_sec": 1 / seconds,
            }
    found = compute_run_statistics(read_run(write_run(tmp_path, rows)), now=NOW)
    assert found.step_seconds.median == 1.0
    assert found.tokens_per_second == pytest.approx(50.0)  # the median of 100, 100, 100, 50, 50, 50 and 50
