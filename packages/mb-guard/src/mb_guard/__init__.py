"""Known faults of Megatron Core, Transformer Engine and their neighbours: corrected, refused or reported.

>>> import mb_guard
>>> report = mb_guard.install(quiet=True)  # before or after megatron is imported
>>> fault = mb_guard.find_fault("weak-backward-hooks")
>>> fault.effect, fault.action, fault.versions
('lost run', 'put right', {'megatron-core': '>=0.19.0,<=0.19.2'})
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_guard.catalogue import FAULTS as FAULTS
    from mb_guard.catalogue import find_fault as find_fault
    from mb_guard.errors import GuardError as GuardError
    from mb_guard.errors import KnownFaultError as KnownFaultError
    from mb_guard.errors import UnknownFaultError as UnknownFaultError
    from mb_guard.fault import Fault as Fault
    from mb_guard.fault import Patch as Patch
    from mb_guard.installation import install as install
    from mb_guard.installation import status as status
    from mb_guard.installation import without as without
    from mb_guard.report import FaultStatus as FaultStatus
    from mb_guard.report import GuardReport as GuardReport

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
