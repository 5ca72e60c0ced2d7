"""Random numbers: the host's generator is the device's generator too."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from mb_host.device import do_nothing


class HostGenerators:
    """`torch.cuda.default_generators` with the host's one generator at index 0."""

    def __getitem__(self, index: int) -> torch.Generator:
        return (torch.default_generator,)[index]

    def __len__(self) -> int:
        return 1


def call_now(callback: Callable[[], object], **_when: object) -> None:
    """Call `callback` at once, where CUDA would wait for its initialisation."""
    callback()


def seed(seed: int) -> None:
    """Seed the host's generator."""
    torch.default_generator.manual_seed(int(seed))


def get_rng_state(device: object = "cuda") -> torch.Tensor:
    """Return the state of the host's generator, whatever the device."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: object = "cuda") -> None:
    """Set the state of the host's generator, whatever the device."""
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the state of the one device that there is."""
    return [torch.get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of the one device that there is."""
    for new_state in new_states:
        torch.set_rng_state(new_state)


def replace_random() -> None:
    """Make seeding, reading and setting the device's random state act on the host's generator."""
    cuda: Any = torch.cuda
    cuda.default_generators = HostGenerators()
    cuda._lazy_init = do_nothing()
    cuda._lazy_call = call_now
    for module in (cuda, cuda.random):
        module.manual_seed = module.manual_seed_all = seed
        module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state
        module.get_rng_state_all, module.set_rng_state_all = get_rng_state_all, set_rng_state_all
