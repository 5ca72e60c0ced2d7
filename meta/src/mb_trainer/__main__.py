"""Entry point of `python -m mb_trainer`, identical to `mb`, for launchers that require a module."""

from mb_trainer.cli.app import main

main()
