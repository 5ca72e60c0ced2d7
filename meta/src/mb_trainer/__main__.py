"""`python -m mb_trainer`: the same as `mb`, for launchers that want a module."""

from mb_trainer.cli import main

main()
