"""Conditions for storing and restoring the state of a rerun state machine."""

from types import SimpleNamespace

import pytest

from mb_checkpoint.state.rerun_state import RERUN_KEY, rerun_entry, rerun_request, take_over

SHARD = SimpleNamespace(unique_key="machine/shard_0_2", data=b"waiting")


class Machine:
    """State machine with one shard per rank, unless it is disabled."""

    def __init__(self, *, on=True):
        self.on, self.loaded = on, None

    def state_dict(self, *, template=False):
        return {"state": "waiting", "sharded": SHARD} if self.on or template else None

    def load_state_dict(self, state):
        self.loaded = state


def test_a_machine_without_state_is_not_stored():
    assert rerun_entry(Machine()) == {RERUN_KEY: {"state": "waiting", "sharded": SHARD}}
    assert rerun_entry(Machine(on=False)) == rerun_entry(None) == {}


@pytest.mark.parametrize(
    ("machine", "objects", "same_layout", "requested", "noted"),
    [
        (Machine(), {"machine/shard_0_2", "other/shard_0_1"}, True, True, False),
        (Machine(), {"machine/shard_0_4"}, True, False, True),  # stored by four ranks
        (Machine(), {"machine/shard_0_2"}, False, False, True),
        (Machine(), {"other/shard_0_1"}, True, False, False),
        (None, {"machine/shard_0_2"}, True, False, False),
    ],
)
def test_the_request_depends_on_the_stored_shards(machine, objects, same_layout, requested, noted):
    request, note = rerun_request(machine, objects=frozenset(objects), same_layout=same_layout)
    assert (RERUN_KEY in request, note is not None) == (requested, noted)


def test_a_loaded_state_is_restored_if_it_was_requested():
    machine, loaded = Machine(), {RERUN_KEY: {"state": "waiting"}}
    take_over(machine, loaded, requested=False)
    assert machine.loaded is None
    take_over(machine, loaded, requested=True)
    take_over(None, loaded, requested=True)
    assert machine.loaded == {"state": "waiting"}
