"""Where a run is: the counters that a checkpoint keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, fields


class TrainStateError(ValueError):
    """A stored train state does not hold exactly the known counters."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Counters of a run, advanced by the loop and stored in every checkpoint."""

    step: int = 0
    """Finished steps; steps whose update was skipped and steps of the skip list count too."""

    consumed_train_samples: int = 0
    """Samples taken from the training stream, over all ranks."""

    skipped_train_samples: int = 0
    """Samples of the training stream that no weight update saw: skip list, or a batch that was rounded down."""

    consumed_valid_samples: int = 0
    """Samples taken from the validation stream, over all ranks."""

    floating_point_operations_so_far: int = 0
    """Estimated operations since step 0. The loop stores it; a callback that knows the model adds to it."""

    do_train: bool = False
    """There is training data and something to train."""

    do_valid: bool = False
    """There is validation data, and a number of batches to evaluate."""

    do_test: bool = False
    """There is test data, and a number of batches to evaluate."""

    def state_dict(self) -> dict[str, int | bool]:
        """Return the counters as builtins, under their field names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Take over counters stored by `state_dict`.

        Raises:
            TrainStateError: a counter is missing or unknown; nothing was changed.
        """
        known = {field.name for field in fields(self)}
        missing, unknown = known - state.keys(), state.keys() - known
        if missing or unknown:
            raise TrainStateError(
                f"train state: missing {sorted(missing)}, unknown {sorted(unknown)}; a partial state would "
                "resume at the wrong sample. Load a state that this version's state_dict() wrote."
            )
        for name in known:
            kind = type(getattr(self, name))  # a stored 0-d tensor or numpy number becomes a builtin here
            setattr(self, name, kind(state[name]))
