"""Straggler timer of a run: the port of rank 0 is in use, or no timer is configured."""

import io
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from mb_trainer.config import NVRxStragglerDetectionConfig, StragglerDetectionConfig
from mb_trainer.console import Voice
from mb_trainer.stragglers import Stragglers, look_for_stragglers, switch_of_rank_0


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_port_in_use_is_said_and_the_run_goes_on_without_a_switch(alone):
    said = io.StringIO()
    with socket.socket() as taken, ExitStack() as stack:
        taken.bind(("", 0))
        taken.listen()
        section = StragglerDetectionConfig(
            straggler_ctrlr=True, straggler_ctrlr_port=taken.getsockname()[1], straggler_ctrlr_host=""
        )
        voice = Voice(stream=said)
        assert switch_of_rank_0(stack, section, on=True, token_file=None, voice=voice) is None
    assert said.getvalue().startswith(
        "warning: straggler.straggler_ctrlr_port: straggler switch: cannot listen"
    )


@pytest.mark.parametrize(
    "sections",
    [(None, None), (StragglerDetectionConfig(), NVRxStragglerDetectionConfig())],
    ids=["none", "off"],
)
def test_sections_that_are_absent_or_off_change_nothing(sections):
    config = SimpleNamespace(straggler=sections[0], nvrx_straggler=sections[1])
    with look_for_stragglers(config, device=torch.device("cpu"), voice=Voice(), operations=len) as found:
        assert found == Stragglers()
        assert (found.callbacks(), found.values(), found.wish(1)) == ([], {}, None)
        assert found.timed((len, [], None, None)) == (len, [], None, None)
        assert found.reading(data := iter([1])) is data
