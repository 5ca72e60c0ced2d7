"""Settings for the tests of all packages.

Hypothesis measures an example against a deadline of 200 ms by default. A shared machine misses it now and then, and the
test fails although nothing is wrong, so no test has a deadline.
"""

from importlib.util import find_spec

if find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("without_deadline", deadline=None)
    settings.load_profile("without_deadline")
