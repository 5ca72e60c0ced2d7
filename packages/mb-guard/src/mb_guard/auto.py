"""Importing this module calls `mb_guard.install(quiet=True)`: for launchers that take names of modules to import."""

from mb_guard.installation import install

REPORT = install(quiet=True)
