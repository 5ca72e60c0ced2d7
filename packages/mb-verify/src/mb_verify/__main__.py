"""`python -m mb_verify` and the program `mb-verify`."""

import sys


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    try:
        from mb_verify.cli.app import app  # noqa: PLC0415 - typer is optional
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "typer":
            raise
        sys.stderr.write(
            'mb-verify: needs typer, which is not installed. Run: pip install "mb-verify[cli]"\n'
        )
        raise SystemExit(2) from None
    app()


if __name__ == "__main__":
    main()
