"""Process groups of a built model. Imports megatron."""

from collections.abc import Sequence
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_attr_wrapped_model


def get_pg_collection(model: Any | Sequence[Any]) -> Any:
    """Return the process groups of a model or its chunks; Megatron's global ones if it has none."""
    chunk = model[0] if isinstance(model, Sequence) else model
    try:
        return get_attr_wrapped_model(chunk, "pg_collection", allow_none=False)
    except RuntimeError:  # Megatron's answer if neither the model nor what it wraps has the attribute
        return ProcessGroupCollection.use_mpu_process_groups()
