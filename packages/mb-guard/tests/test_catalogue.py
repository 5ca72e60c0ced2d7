"""The records themselves."""

import re
from pathlib import Path

import pytest

from mb_guard.catalogue import FAULTS
from mb_guard.sources import installed_hash, module_file
from mb_guard.versions import within

ROOT = Path(__file__).parents[3]


def test_ids_are_unique():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_record_is_complete(fault):
    path, _, function = fault.test.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE)
    assert (fault.action == "put right") == bool(fault.patches)
    assert fault.action == "put right" or fault.advice
    assert all(within("1.0", bounds) in (True, False) for bounds in fault.versions.values())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_installed_functions_are_known(fault):
    for patch in fault.patches:
        if patch.sources and module_file(patch.module):
            found = installed_hash(patch.module, patch.target)
            assert found in patch.sources, (
                f"{patch.module}.{patch.target} is {found}. Read the installed function: if the fault is still there, "
                "add this hash to the sources of the patch; if not, set the upper bound of the record's versions."
            )
