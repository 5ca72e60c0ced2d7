"""Configuration of a run for loading its weights in a single process. No torch."""

from mb_trainer.config import ConfigContainer

UNDIVIDED = {
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
"""Fields of a model that only apply to several ranks, and their values for one rank."""


def single_process(config: ConfigContainer) -> ConfigContainer:
    """Set every parallel size to one in place, and drop the pipeline split."""
    model = config.model
    for name, value in UNDIVIDED.items():
        setattr(model, name, value)
    if hasattr(model, "hybrid_layer_pattern"):
        model.hybrid_layer_pattern = model.hybrid_layer_pattern.replace("|", "")
    return config
