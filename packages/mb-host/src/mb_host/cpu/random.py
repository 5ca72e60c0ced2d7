"""Random numbers: the CPU generator is also the device generator."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from mb_host.cpu.device import do_nothing


class HostGenerators:
    """Substitute for `torch.cuda.default_generators`, with the CPU generator at index 0."""

    def __getitem__(self, index: int) -> torch.Generator:
        return (torch.default_generator,)[index]

    def __len__(self) -> int:
        return 1


def call_now(callback: Callable[[], object], *_args: object, **_kwargs: object) -> None:
    """Call `callback` immediately; CUDA would defer it until its initialisation."""
    callback()


def seed(seed: int, *_args: object, **_kwargs: object) -> None:
    """Seed the CPU generator."""
    torch.default_generator.manual_seed(int(seed))


def get_rng_state(*_args: object, **_kwargs: object) -> torch.Tensor:
    """Return the state of the CPU generator for any device."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, *_args: object, **_kwargs: object) -> None:
    """Set the state of the CPU generator for any device."""
    torch.set_rng_state(new_state)


def get_rng_state_all(*_args: object, **_kwargs: object) -> list[torch.Tensor]:
    """Return the states of all devices, of which there is one."""
    return [torch.get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor], *_args: object, **_kwargs: object) -> None:
    """Set the states of all devices, of which there is one."""
    for new_state in new_states:
        torch.set_rng_state(new_state)


def replace_random() -> None:
    """Redirect seeding, reading and setting of the device's random state to the CPU generator."""
    cuda: Any = torch.cuda
    cuda.default_generators = HostGenerators()
    cuda._lazy_init = do_nothing()
    cuda._lazy_call = call_now
    for module in (cuda, cuda.random):
        module.manual_seed = module.manual_seed_all = seed
        module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state
        module.get_rng_state_all, module.set_rng_state_all = get_rng_state_all, set_rng_state_all
