"""Exit codes of programs, and the messages of their errors."""

import errno
import os
import sys

import pytest

from mb_schema import PackageError
from mb_schema.exit_codes import BAD_INPUT, DONE, FAILURE, INTERRUPTED, exit_code, run_program


class UnreadableError(PackageError, ValueError):
    bad_input = True


class InvariantError(PackageError):
    internal = True


def run(outcome):
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@pytest.mark.parametrize(
    ("outcome", "code", "printed"),
    [
        (DONE, DONE, ""),
        (PackageError("the run failed"), FAILURE, "error: the run failed\n"),
        (UnreadableError("a.yaml: has no keys"), BAD_INPUT, "error: a.yaml: has no keys\n"),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted\n"),
    ],
)
def test_an_error_of_the_user_is_one_line_and_a_code(outcome, code, printed, capsys):
    assert (exit_code(lambda: run(outcome)), capsys.readouterr().err) == (code, printed)


def test_a_path_that_cannot_be_used_is_bad_input(capsys):
    assert exit_code(lambda: run(OSError(errno.EACCES, "Permission denied", "a"))) == BAD_INPUT
    assert capsys.readouterr().err.startswith("error: a: cannot be used (Permission denied)")


def test_a_name_that_is_not_utf_8_is_bad_input(tmp_path, capsys):
    name = os.fsdecode(b"caf\xe9")
    assert exit_code(lambda: run((tmp_path / "file").write_text(name, encoding="utf-8"))) == BAD_INPUT
    assert capsys.readouterr().err.startswith(r"error: caf\udce9: is not UTF-8, and cannot be written")


def test_text_that_another_encoding_lacks_is_no_bad_input():
    with pytest.raises(UnicodeEncodeError):
        exit_code(lambda: run("é".encode("ascii")))


@pytest.mark.parametrize(
    "error", [InvariantError("x"), ZeroDivisionError(), OSError(errno.EIO, "Input/output", "a")]
)
def test_other_errors_are_raised(error):
    with pytest.raises(type(error)):
        exit_code(lambda: run(error))


def test_a_report_replaces_the_printed_message(capsys):
    assert exit_code(lambda: run(PackageError("failed")), lambda text, code: len(text) + code) == 7
    assert capsys.readouterr().err == ""


def test_commands_end_with_the_code_of_the_error(capsys):
    typer = pytest.importorskip("typer")
    from mb_schema.commands import exit_codes

    with pytest.raises(typer.Exit) as end, exit_codes():
        raise UnreadableError("a: b")
    assert (end.value.exit_code, capsys.readouterr().err) == (BAD_INPUT, "error: a: b\n")
    with pytest.raises(typer.Exit) as end, exit_codes():
        raise KeyboardInterrupt
    assert end.value.exit_code == INTERRUPTED
    with pytest.raises(typer.Exit) as end, exit_codes():
        raise typer.Exit(7)
    assert end.value.exit_code == 7
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError


def test_a_command_has_an_example_in_its_help():
    typer = pytest.importorskip("typer")
    from typer.testing import CliRunner

    from mb_schema.commands import CommandWithExample

    app = typer.Typer()

    @app.command(cls=CommandWithExample, epilog="runs/a")
    def show(run: str) -> None:
        """Show a run."""

    shown = [CliRunner().invoke(app, ["--help"], prog_name="mb").output for _ in range(2)]
    assert "Example: mb runs/a" in shown[0]
    assert shown[0] == shown[1]


def test_a_program_without_its_extra_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "mb_schema.commands", raising=False)
    with pytest.raises(SystemExit) as end:
        run_program("mb-x", "mb_schema.commands:app")
    assert end.value.code == BAD_INPUT
    assert capsys.readouterr().err == (
        'mb-x: needs typer, which is not installed. Install it: pip install "mb-x[cli]"\n'
    )


def test_a_program_whose_own_module_is_missing_keeps_its_traceback():
    with pytest.raises(ModuleNotFoundError, match="mb_missing"):
        run_program("mb-x", "mb_missing:app")


def test_a_program_runs():
    with pytest.raises(SystemExit):
        run_program("mb-x", "sys:exit")
