"""Section of a model for building it on a single rank. No torch."""

from math import gcd
from typing import TypeVar

from mb_models.errors import ModelConfigError
from mb_models.hybrid.config import MambaModelConfig
from mb_models.mimo.config import MimoModelConfig

Section = TypeVar("Section")

UNSHARDED = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "sequence_parallel": False,
    "overlap_p2p_comm": False,
    "tp_comm_overlap": False,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "pipeline_model_parallel_layout": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}
"""Fields of a section that only apply to several ranks, and their values for one rank."""


def _tensor_parallel_size(trained: int, *, processes: int, replicas: bool) -> int:
    size = gcd(trained, processes)
    if size < processes and not replicas:
        raise ModelConfigError(
            [
                f"model.tensor_model_parallel_size: a model that was trained with {trained} cannot be divided among "
                f"{processes} processes. Start one process, or a number that divides {trained}."
            ]
        )
    return size


def unshard(section: Section, *, processes: int = 1, replicas: bool = False) -> Section:
    """Set every parallel size of a model section to one in place, drop the pipeline split, and return the section.

    Loading a checkpoint of any layout into a model of this section merges the shards. Several processes keep the tensor
    parallelism of training, or a divisor of it.

    Args:
        section: section of the trained model.
        processes: number of processes that load it.
        replicas: whether several groups of processes may have the model, each completely.

    Raises:
        ModelConfigError: without replicas, the processes cannot divide the model.
    """
    trained: int = section.tensor_model_parallel_size  # type: ignore[attr-defined]
    size = _tensor_parallel_size(trained, processes=processes, replicas=replicas)
    for name, value in UNSHARDED.items():
        setattr(section, name, value)
    section.tensor_model_parallel_size = size  # type: ignore[attr-defined]
    if isinstance(section, MambaModelConfig):
        section.hybrid_layer_pattern = section.hybrid_layer_pattern.replace("|", "")
    if isinstance(section, MimoModelConfig):
        section.language_rank_offset, section.vision_tensor_model_parallel_size = 0, None
    return section
