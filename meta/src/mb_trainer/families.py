"""Model families: what the trainer needs for each, looked up by the class of the section `model`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_host.hybrid import host_hybrid_spec
from mb_host.layers import host_block_spec
from mb_host.t5 import host_t5_spec
from mb_models import (
    GPTForwardStep,
    GPTModelConfig,
    GPTModelProvider,
    MambaForwardStep,
    MambaModelConfig,
    MambaModelProvider,
    MimoForwardStep,
    MimoModelConfig,
    MimoModelProvider,
    StackSpec,
    T5ForwardStep,
    T5ModelConfig,
    T5ModelProvider,
    hybrid_parameter_count,
    hybrid_transformer_engine_spec,
    local_spec,
    mimo_parameter_count,
    parameter_count,
    t5_parameter_count,
    t5_transformer_engine_spec,
    transformer_engine_spec,
)


class Provider(Protocol):
    """Builds the chunks of a pipeline rank."""

    @property
    def transformer(self) -> Any:
        """Megatron's configuration of the model; the trainer sets its run-time hooks."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding over all ranks, padding included."""

    def provide_chunks(self, pg_collection: ProcessGroupCollection | None = None) -> list[Any]:
        """Return this rank's chunks, in the order of their virtual stages."""


class ForwardStep(Protocol):
    """Forward step of one microbatch through one chunk, as called by Megatron's schedules."""

    def __call__(
        self, data_iterator: Iterator[Any] | None, model: torch.nn.Module, return_schedule_plan: bool = False
    ) -> tuple[object, Callable[[torch.Tensor], Any] | None]:
        """Return the output of the chunk and the loss function for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Functions and layers with which models of one family are built and trained."""

    provider: Callable[..., Provider]
    """Called as (section, layer_spec=, device=, tokenizer_vocab_size=)."""
    forward_step: Callable[..., ForwardStep]
    """Called as (inspect_loss=)."""
    parameters: Callable[..., int]
    """Number of parameters of the complete model, called as (section, vocab_size=)."""
    host: StackSpec
    """Layers without a GPU, in the form that the provider takes: a pair for T5."""
    local: StackSpec | None = None
    """Layers on a GPU without Transformer Engine; None: the family requires it there."""
    transformer_engine: StackSpec | None = None
    """Layers of Transformer Engine."""
    continues_text: bool = True
    """Whether the model generates the text that follows a prompt."""


GPT = Family(
    provider=GPTModelProvider,
    forward_step=GPTForwardStep,
    parameters=parameter_count,
    host=host_block_spec,
    local=local_spec,
    transformer_engine=transformer_engine_spec,
)

HYBRID = Family(
    provider=MambaModelProvider,
    forward_step=MambaForwardStep,
    parameters=hybrid_parameter_count,
    host=host_hybrid_spec,
    transformer_engine=hybrid_transformer_engine_spec,
)

T5 = Family(
    provider=T5ModelProvider,
    forward_step=T5ForwardStep,
    parameters=t5_parameter_count,
    host=host_t5_spec,
    transformer_engine=t5_transformer_engine_spec,
    continues_text=False,
)

MIMO = Family(
    provider=MimoModelProvider,
    forward_step=MimoForwardStep,
    parameters=mimo_parameter_count,
    host=host_block_spec,
    local=local_spec,
    transformer_engine=transformer_engine_spec,
    continues_text=False,
)

FAMILIES: Mapping[type, Family] = {
    GPTModelConfig: GPT,
    MambaModelConfig: HYBRID,
    T5ModelConfig: T5,
    MimoModelConfig: MIMO,
}
"""Families by the class of their section."""


def family_of(section: object) -> Family:
    """Return the family of a model section; a subclass belongs to its parent's."""
    for cls in type(section).__mro__:
        if cls in FAMILIES:
            return FAMILIES[cls]
    known = ", ".join(cls.__name__ for cls in FAMILIES)
    raise TypeError(
        f"model: {type(section).__name__} belongs to no family of models, so that nothing says how to build it. "
        f"Use one of {known}."
    )
