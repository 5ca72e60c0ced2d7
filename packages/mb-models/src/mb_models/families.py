"""Model families: provider, forward step, layers and parameter count, by the class of the section `model`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.config import GPTModelConfig
from mb_models.errors import ModelConfigError
from mb_models.gpt.layer_specs import local_spec, transformer_engine_spec
from mb_models.gpt.provider import GPTModelProvider
from mb_models.hybrid.config import MambaModelConfig
from mb_models.hybrid.provider import MambaForwardStep, MambaModelProvider, hybrid_transformer_engine_spec
from mb_models.mimo.config import MimoModelConfig
from mb_models.mimo.provider import MimoForwardStep, MimoModelProvider
from mb_models.parameters import (
    hybrid_parameter_count,
    mimo_parameter_count,
    parameter_count,
    t5_parameter_count,
)
from mb_models.t5.config import T5ModelConfig
from mb_models.t5.provider import T5ForwardStep, T5ModelProvider, t5_transformer_engine_spec
from mb_models.training.chunks import StackSpec
from mb_models.training.forward_step import GPTForwardStep


class ChunkProvider(Protocol):
    """Builder of the chunks of a pipeline rank."""

    @property
    def transformer(self) -> Any:
        """Megatron's configuration of the model; its run-time hooks are set when the optimizer is connected."""

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

    name: str
    """Key of the family in a table of layers for the CPU, such as `mb_host.megatron.families.HOST_LAYERS`."""
    provider: Callable[..., ChunkProvider]
    """Called as (section, layer_spec=, device=, tokenizer_vocab_size=)."""
    forward_step: Callable[..., ForwardStep]
    """Called as (inspect_loss=)."""
    parameters: Callable[..., int] | None = None
    """Number of parameters of the complete model, called as (section, vocab_size=); None: counted when it is built."""
    local: StackSpec | None = None
    """Layers of Megatron's and torch's own modules; None: the family has none."""
    transformer_engine: StackSpec | None = None
    """Layers of Transformer Engine."""
    continues_text: bool = True
    """Whether the model generates the text that follows a prompt."""


GPT = Family(
    name="gpt",
    provider=GPTModelProvider,
    forward_step=GPTForwardStep,
    parameters=parameter_count,
    local=local_spec,
    transformer_engine=transformer_engine_spec,
)

HYBRID = Family(
    name="hybrid",
    provider=MambaModelProvider,
    forward_step=MambaForwardStep,
    parameters=hybrid_parameter_count,
    transformer_engine=hybrid_transformer_engine_spec,
)

T5 = Family(
    name="t5",
    provider=T5ModelProvider,
    forward_step=T5ForwardStep,
    parameters=t5_parameter_count,
    transformer_engine=t5_transformer_engine_spec,
    continues_text=False,
)

MIMO = Family(
    name="mimo",
    provider=MimoModelProvider,
    forward_step=MimoForwardStep,
    parameters=mimo_parameter_count,
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
    """Return the family of a model section: that of its method `model_family`, else that of its class.

    A section of a user returns its own, such as `replace(GPT, provider=MyProvider, parameters=None)`; a subclass
    without the method belongs to the family of its parent.

    Raises:
        TypeError: the section belongs to no family.
    """
    family_of_section: Callable[[], Family] | None = getattr(section, "model_family", None)
    if family_of_section is not None:
        return family_of_section()
    for cls in type(section).__mro__:
        if cls in FAMILIES:
            return FAMILIES[cls]
    names = ", ".join(cls.__name__ for cls in FAMILIES)
    raise TypeError(
        f"model: {type(section).__name__} belongs to no family of models, so it is unknown how to build it. "
        f"Use one of {names}."
    )


def require_text_family(section: object) -> Family:
    """Return the family of a model section if its models generate the text that follows a prompt.

    Raises:
        ModelConfigError: its models do not.
    """
    family = family_of(section)
    if not family.continues_text:
        raise ModelConfigError(
            [
                f"model: a {type(section).__name__} continues no text, because it answers to more than a "
                "prompt: a text with gaps, or an image. Sample a GPT or a hybrid."
            ]
        )
    return family
