"""Warning about a run on the CPU that is not reproducible bit for bit."""

from dataclasses import replace
from io import StringIO

import mb_host

mb_host.install()  # must run before megatron is imported

from mb_host.reproducibility import read_arithmetic  # noqa: E402
from mb_trainer.build import warn_if_not_reproducible  # noqa: E402
from mb_trainer.console import Console  # noqa: E402


def test_threads_that_may_change_are_announced():
    console = StringIO()
    fixed = replace(read_arithmetic({}), threads=2, team=2, dynamic=False)
    warn_if_not_reproducible(fixed, Console(stream=console))
    assert console.getvalue() == ""
    warn_if_not_reproducible(replace(fixed, team=1), Console(stream=console))
    warning = "warning: this run cannot be repeated bit for bit. OMP_THREAD_LIMIT: a parallel region received 1 of 2"
    assert console.getvalue().startswith(warning)
