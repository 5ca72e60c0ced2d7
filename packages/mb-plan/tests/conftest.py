import pytest


@pytest.fixture
def program():
    """Return a function of words that runs the command `mb-plan`."""
    testing = pytest.importorskip("typer.testing", reason="needs mb-plan[cli]")
    from mb_plan.cli.app import app

    return lambda *words: testing.CliRunner().invoke(app, [*map(str, words)])
