"""Value head in place of the output layer: one or several numbers per token, under any parallel layout."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    set_defaults_if_not_set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    make_sharded_tensors_for_checkpoint,
)

from mb_models.errors import ModelsError

ModelList = list[torch.nn.Module]
"""Model chunks of a rank."""

ModelHook = Callable[[torch.nn.Module | Sequence[torch.nn.Module]], list[torch.nn.Module]]
"""Function that modifies a rank's chunks before they are wrapped, and returns them as a list."""


class HeadError(ModelsError, ValueError):
    """A value head that does not fit the model."""

    internal = True


class LinearForLastLayer(torch.nn.Linear):
    """Linear projection without bias, replicated on every tensor-parallel rank, called like Megatron's output layer.

    Under sequence parallelism each rank projects its part of the sequence and then gathers the full sequence. The
    weight's gradient is then that of the part alone; its attribute `sequence_parallel` makes Megatron sum the parts.

    Args:
        input_size: hidden size of the transformer.
        output_size: outputs per token.
        sequence_parallel: whether inputs are the rank's part of the sequence.
        tp_group: the tensor-parallel group; None: Megatron's global group.
        device: device of the weight.
        dtype: data type of the weight; results are float32.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        sequence_parallel: bool,
        *,
        tp_group: torch.distributed.ProcessGroup | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if min(input_size, output_size) < 1:
            raise HeadError(
                f"LinearForLastLayer: input_size={input_size}, output_size={output_size}, because a projection needs "
                "at least one of each. Pass the model's hidden size, and 1 or more."
            )
        super().__init__(input_size, output_size, bias=False, device=device, dtype=dtype)
        self.sequence_parallel = sequence_parallel
        self.tp_group = tp_group
        set_defaults_if_not_set_tensor_model_parallel_attributes(self.weight)
        set_attributes(
            self.weight, sequence_parallel=sequence_parallel, is_embedding_or_output_parameter=True
        )

    def forward(  # type: ignore[override]  # called as Megatron's layers are
        self,
        input_: torch.Tensor,
        weight: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,
    ) -> tuple[torch.Tensor, None]:
        """Project hidden states [sequence or a part, batch, hidden] to [sequence, batch, output_size] in float32.

        Megatron passes `weight` and `runtime_gather_output` to output layers; this layer ignores both. Collective
        over the tensor-parallel group under sequence parallelism.
        """
        values = super().forward(input_).float()
        if self.sequence_parallel:
            # Every rank computes the loss of the full sequence, so backward takes the rank's part without a sum.
            values = gather_from_sequence_parallel_region(
                values, tensor_parallel_output_grad=False, group=self.tp_group
            )
        return values, None

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> ShardedStateDict:
        """Return the weight as one tensor with a replica on every tensor- and data-parallel rank.

        A checkpoint stores it under its own name, `output_layer.head.weight`. Under the name of the output layer,
        Megatron would silently fill it with the first rows of a language model's output layer, because it accepts
        another shape of that tensor, for vocabularies with different padding.
        """
        groups = ensure_metadata_has_dp_cp_group(metadata)
        state = make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True),
            prefix,
            {},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=groups["dp_cp_group"],
        )
        state[f"{prefix}weight"].key = f"{prefix}head.weight"
        return state


def create_value_head_hook(hidden_size: int, sequence_parallel: bool, output_size: int = 1) -> ModelHook:
    """Return a hook that replaces the last stage's output layer with a `LinearForLastLayer`.

    The hook takes a rank's chunks, or one, after they are built (and a language model's weights loaded) and before they
    are wrapped; every rank calls it with all its chunks. Called without labels, the model then returns
    [batch, sequence, output_size] in float32. Chunks of other stages keep their modules; on all stages the embedding
    is no longer tied to the output. The weight is initialised from Megatron's random-state tracker, identically on all
    tensor- and data-parallel ranks.

    The hook raises:
        HeadError: a chunk is wrapped; there are not as many chunks as virtual stages; the model is a T5 or has
            multi-token prediction; the hidden size or the sequence parallelism is not the model's.
    """

    def replace_output_layer(model: torch.nn.Module | Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
        chunks = [model] if isinstance(model, torch.nn.Module) else list(model)
        expected = {"hidden_size": hidden_size, "sequence_parallel": sequence_parallel}
        models = [_checked(chunk, expected, number_of_chunks=len(chunks)) for chunk in chunks]
        for chunk in models:
            chunk.share_embeddings_and_output_weights = False
            if not chunk.post_process:
                continue
            with get_cuda_rng_tracker().fork(get_data_parallel_rng_tracker_name()):
                chunk.output_layer = LinearForLastLayer(
                    hidden_size,
                    output_size,
                    sequence_parallel,
                    tp_group=chunk.pg_collection.tp,
                    device=next(chunk.parameters()).device,
                    dtype=chunk.config.params_dtype,
                )
        return chunks

    return replace_output_layer


def make_value_model(hidden_size: int, sequence_parallel: bool) -> ModelHook:
    """Return the hook for one value per token, the interface of trainers for reinforcement learning."""
    return create_value_head_hook(hidden_size, sequence_parallel, output_size=1)


def set_attributes(parameter: torch.Tensor, **attributes: bool) -> None:
    """Set the attributes of a parameter from which Megatron derives its treatment."""
    for name, value in attributes.items():
        setattr(parameter, name, value)


def _checked(chunk: torch.nn.Module, expected: dict[str, Any], *, number_of_chunks: int) -> Any:
    """Return a chunk that a value head fits, or raise."""
    kind = type(chunk).__name__
    if not isinstance(chunk, LanguageModule):
        raise HeadError(
            f"value head: {kind} is not a language model of Megatron Core, because it is another kind of module or is "
            "already wrapped. Call the hook between building and wrapping."
        )
    config = chunk.config
    stages = config.virtual_pipeline_model_parallel_size or 1
    if number_of_chunks != stages:
        raise HeadError(
            f"value head: {number_of_chunks} chunks, because a rank of this model has {stages}, one for each virtual "
            "stage, and the head belongs to one of them. Pass all of them in one call."
        )
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise HeadError(
                f"value head: {name}={value}, because the model has {getattr(config, name)}. Pass the model's value."
            )
    if config.mtp_num_layers:
        raise HeadError(
            f"value head: the model has mtp_num_layers={config.mtp_num_layers}, because multi-token prediction uses "
            "the output layer that a head replaces. Build it with mtp_num_layers=None."
        )
    elsewhere = _other_names(chunk) if chunk.post_process else []
    if elsewhere:
        raise HeadError(
            f"value head: {kind} calls {elsewhere[0]}, because it does not call the output layer itself, and a "
            "replacement would never be called. Use a GPT or a hybrid model."
        )
    return chunk


def _other_names(chunk: LanguageModule) -> list[str]:
    """Return the other names of the output layer inside a chunk."""
    modules = chunk.named_modules(remove_duplicate=False)
    return [name for name, module in modules if module is chunk.output_layer and name != "output_layer"]
