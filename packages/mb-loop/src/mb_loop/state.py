"""Training progress: the counters that are stored in checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mb_loop.errors import LoopError


class TrainStateError(LoopError, ValueError):
    """A stored train state does not contain exactly the known counters."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Counters of a run, advanced by the loop and stored in every checkpoint."""

    step: int = 0
    """Finished steps, including steps whose update was skipped and steps of `iterations_to_skip`."""

    consumed_train_samples: int = 0
    """Samples consumed from the training data, over all ranks."""

    skipped_train_samples: int = 0
    """Samples that are not trained on: consumed by `iterations_to_skip`, or left out when a batch is rounded down. The
    latter are not in `consumed_train_samples`."""

    consumed_valid_samples: int = 0
    """Samples consumed from the validation data, over all ranks."""

    floating_point_operations_so_far: int = 0
    """Estimated floating-point operations since step 0, as returned by the `flops` argument of `train`."""

    do_train: bool = False
    """Whether there is training data and at least one step."""

    do_valid: bool = False
    """Whether there is validation data and at least one batch to evaluate."""

    do_test: bool = False
    """Whether there is test data and at least one batch to evaluate."""

    def state_dict(self) -> dict[str, int | bool]:
        """Return the counters as builtin types, by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Load counters stored by `state_dict`.

        Raises:
            TrainStateError: a counter is missing or unknown; no counter is changed.
        """
        names = {field.name for field in fields(self)}
        missing, unknown = names - state.keys(), state.keys() - names
        if missing or unknown:
            raise TrainStateError(
                f"train state: missing {sorted(missing)}, unknown {sorted(unknown)}; a partial state would "
                "resume at the wrong sample. Load a state that this version's state_dict() wrote."
            )
        for name in names:
            kind = type(getattr(self, name))  # converts 0-d tensors and numpy scalars to builtins
            setattr(self, name, kind(state[name]))
