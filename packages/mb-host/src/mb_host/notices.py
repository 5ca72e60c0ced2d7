"""Third-party notices that nobody without a GPU can do anything about, silenced at their source, by name."""

import logging
import re
import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice to keep quiet.

    `logger` is the logger that it comes through; None: it is a Python warning. `pattern` is matched at its start.
    """

    pattern: str
    why: str
    logger: str | None = None


NOTICES: tuple[Notice, ...] = (
    Notice(
        pattern=r"(Transformer Engine and )?Apex (are|is) not installed",
        why="both need CUDA; torch's own norms and optimizers are the right ones here",
    ),
    Notice(
        pattern=r"invalid escape sequence",
        why="a docstring in Megatron's inference files; seen once, when Python compiles them",
    ),
    Notice(
        logger="torch.utils.cpp_extension",
        pattern=r"No CUDA runtime is found",
        why="there is none, and nothing is built",
    ),
    Notice(
        logger="megatron.core.tensor_parallel.random",
        pattern=r"CPU RNG state changed",
        why="host and device share one generator, so a fork of the device's state moves the host's",
    ),
)


class _Drop(logging.Filter):
    """A logging filter that drops the records whose message starts with one of `patterns`."""

    def __init__(self, patterns: frozenset[str]) -> None:
        super().__init__()
        self.patterns = patterns

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not any(re.match(pattern, message) for pattern in self.patterns)


def quiet() -> None:
    """Silence every notice of `NOTICES`; nothing else, and again without effect."""
    for notice in NOTICES:
        if notice.logger is None:
            warnings.filterwarnings("ignore", message=notice.pattern)
        else:
            _drop(notice.pattern, logger=logging.getLogger(notice.logger))


def _drop(pattern: str, *, logger: logging.Logger) -> None:
    patterns = frozenset({pattern})
    if not any(isinstance(known, _Drop) and known.patterns == patterns for known in logger.filters):
        logger.addFilter(_Drop(patterns))
