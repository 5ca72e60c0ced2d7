"""Output in a notebook: a live chart of the loss, and tables of statistics and sections; names are escaped."""

import sys
from dataclasses import dataclass, field
from xml.etree import ElementTree

import pytest
from sample_runs import BEGIN, row, write_run

from mb_metrics import LoggerConfig, Metrics, NotebookSink, compute_run_statistics
from mb_metrics.report.run_reader import read_run
from mb_metrics.sinks.notebook import NotebookUnavailableError


@dataclass
class Notebook:
    """Stand-in for `IPython.display` that keeps what a cell shows."""

    shown: list = field(default_factory=list)

    def HTML(self, data):
        return data

    def display(self, html, *, display_id):
        assert display_id
        self.shown.append(html)
        return self

    def update(self, html):
        self.shown[-1] = html
        self.updates = getattr(self, "updates", 0) + 1


HOSTILE = "<img src=x onerror=alert(1)>"


def test_metrics_are_plotted_below_the_cell_and_updated():
    notebook = Notebook()
    with Metrics(NotebookSink(display=notebook, seconds=0), log_interval=2, total_steps=6) as metrics:
        for step in range(1, 7):
            metrics.record(step, {"lm loss": 3.0 / step, "lr": 0.5, HOSTILE: float("nan")})
        metrics.evaluation(6, {"lm loss": 0.75})
    (html,) = notebook.shown
    assert notebook.updates >= 3
    assert "<b>6 of 6</b>" in html
    assert "<img" not in html
    chart = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    kinds = [part.tag for part in chart]
    assert (kinds.count("polyline"), kinds.count("circle")) == (1, 1)
    assert len(chart[0].get("points").split()) == 6


def test_updates_have_a_least_interval():
    notebook, now = Notebook(), [0.0]
    sink = NotebookSink(display=notebook, seconds=10, clock=lambda: now[0])
    with Metrics(sink, log_interval=1) as metrics:
        for step in range(1, 21):
            now[0] += 1.0
            metrics.record(step, {"loss": 1.0 / step})
    assert notebook.updates == 2  # after 10 steps, and at the end


def test_a_run_with_a_nan_is_marked():
    notebook = Notebook()
    with Metrics(NotebookSink(display=notebook), log_interval=4) as metrics:
        for step, loss in enumerate((3.0, float("nan"), 2.0, 1.0), start=1):
            metrics.record(step, {"loss": loss})
    assert notebook.shown[0].count('stroke="#e5484d"') == 1


def test_without_ipython_the_error_names_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(NotebookUnavailableError, match=r"needs IPython.*pip install ipython"):
        NotebookSink()


def test_statistics_are_a_table(tmp_path):
    rows = [row(step, step, **{"lm loss": 1.0, HOSTILE: 2.0}) for step in (1, 2)]
    run = read_run(write_run(tmp_path / "run", rows, log__txt=f"warning: {HOSTILE}\n"))
    html = compute_run_statistics(run, now=BEGIN)._repr_html_()
    assert ("<img" in html, "Last loss" in html, "warning: &lt;img" in html) == (False, True, True)


def test_a_section_shows_what_was_set_and_no_secret():
    section = LoggerConfig(
        wandb_project="<b>", comet_api_key="pa55", mlflow_tags={"DB_PASSWORD": "pa55", "team": "a"}
    )
    html = section._repr_html_()
    changed, defaults = html.split("<details>")
    assert [name in changed for name in ("wandb_project", "&lt;b&gt;", "log_interval", "team")] == [
        *(True, True, False, True)
    ]
    assert "log_interval" in defaults
    assert "pa55" not in html
