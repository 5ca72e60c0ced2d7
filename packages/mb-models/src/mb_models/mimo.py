"""Build a model that sees from its section, and train it: provider, batches and forward step.

Megatron Core calls its MIMO model experimental. Encoder, projection and language model stand on the same ranks.

Shapes: B sequences of a microbatch, each with one picture, S tokens of a sequence (all of them, also under context
parallelism), H pixels of a picture's height and width.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.mimo import MimoModel
from megatron.core.models.mimo import MimoModelConfig as MegatronMimoConfig
from megatron.core.models.mimo.submodules.vision import VisionModalitySubmodules
from megatron.core.models.vision.clip_vit_model import CLIPViTModel
from megatron.core.models.vision.multimodal_projector import MultimodalProjector
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType, ModelType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.batches import next_microbatch, to_device
from mb_models.errors import BatchError
from mb_models.forward_step import NO_SCHEDULE_PLAN, Loss, masked_next_token_loss
from mb_models.gpt import LayerSpec
from mb_models.mimo_config import MimoModelConfig, encoder_section, projection_section
from mb_models.provider import ModelProvider
from mb_models.transformer import transformer_config

KEYS = ("tokens", "labels", "loss_mask", "position_ids", "images")
"""What a microbatch holds."""

VISION, ENCODER = "vision", "patches"
"""Megatron's names of the modality and of its encoder, which are part of the names of weights."""


class PatchEncoder(CLIPViTModel):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's encoder, whose positions start as small as all other weights, and which knows its group when saved."""

    def __init__(
        self, transformer_config: TransformerConfig, *, pg_collection: ProcessGroupCollection, **settings: Any
    ) -> None:
        super().__init__(transformer_config, pg_collection=pg_collection, **settings)
        self.tp_group = pg_collection.tp
        if transformer_config.perform_initialization:
            transformer_config.init_method(self.position_embeddings.weight)


class ColocatedMimoModel(MimoModel):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's MIMO model, all of it on every rank, with what its wrappers and schedules ask of a chunk."""

    def __init__(self, config: MegatronMimoConfig, *, pg_collection: ProcessGroupCollection) -> None:
        super().__init__(config, cp_group=pg_collection.cp, tp_group=pg_collection.tp)
        self.pg_collection = pg_collection
        self.model_type = ModelType.encoder_or_decoder
        self.pre_process = self.post_process = True
        self.vp_stage = None


class MimoModelProvider(ModelProvider[MimoModelConfig, LayerSpec, ColocatedMimoModel]):
    """Builds a model that sees under explicit process groups, on one pipeline stage.

    `layer_spec` says what the layers of both transformers are made of. Initial weights of patches and positions, which
    all ranks have whole, come from torch's generator. `transformer` is the language model's configuration.

    Attributes:
        encoder: Megatron's configuration of the encoder.
        projection: and of the MLP that leads from it to the language model.
    """

    def _transformer_config(self) -> TransformerConfig:
        self.encoder = transformer_config(encoder_section(self.config), device=self.device)
        self.projection = transformer_config(projection_section(self.config), device=self.device)
        return transformer_config(self.config, device=self.device)

    def _build(
        self, *, pre_process: bool, post_process: bool, vp_stage: int | None, groups: ProcessGroupCollection
    ) -> ColocatedMimoModel:
        with suppress_experimental_warnings():
            return ColocatedMimoModel(
                MegatronMimoConfig(
                    language_model_spec=self.language_spec(groups),
                    modality_submodules_spec={VISION: self.vision_spec(groups)},
                    special_token_ids={VISION: self.config.image_token_id},
                ),
                pg_collection=groups,
            )

    def language_spec(self, groups: ProcessGroupCollection) -> ModuleSpec:
        """Say how the language model is built under these groups, which it alone need be part of."""
        config = self.config
        return ModuleSpec(
            GPTModel,
            params={
                **self._arguments(pre_process=True, post_process=True, groups=groups),
                "transformer_layer_spec": self._layers(self.transformer),
                "max_sequence_length": config.max_position_embeddings or config.seq_length,
                "position_embedding_type": config.position_embedding_type,
                "rotary_base": config.rotary_base,
                "rope_scaling": config.rope_scaling,
                "rope_scaling_factor": config.rope_scaling_factor,
                "scatter_embedding_sequence_parallel": False,  # pictures come in before the sequence is split
            },
        )

    def vision_spec(self, groups: ProcessGroupCollection) -> ModuleSpec:
        """Say how encoder and projection are built under these groups, which they alone need be part of."""
        layers = _without_causal_mask(self._layers(self.encoder))
        encoder = ModuleSpec(
            PatchEncoder,
            params={
                "transformer_config": self.encoder,
                "transformer_layer_spec": layers,
                "ln_post_impl": layers.layer_norm,
                "add_class_token": False,
                "class_token_len": 0,
                "patch_dim": self.config.patch_size,
                "img_h": self.config.image_size,
                "img_w": self.config.image_size,
                "model_subtype": "siglip",  # a final norm, none before the layers, and no class token
                "pg_collection": groups,
            },
        )
        projection = ModuleSpec(
            MultimodalProjector,
            params={
                "config": self.projection,
                "projector_type": "mlp",
                "input_size": self.config.vision_hidden_size,
                "pg_collection": groups,
            },
            submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        )
        return ModuleSpec(
            VisionModalitySubmodules,
            params={"pg_collection": groups},
            submodules={"encoders": {ENCODER: encoder}, "input_projections": [projection]},
        )

    def _layers(self, transformer: TransformerConfig) -> TransformerBlockSubmodules:
        return self._layer_spec(transformer, vp_stage=None, pp_rank=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRows:
    """Which rows of a whole microbatch the modules of a rank take, as (number of a part, so many equal parts)."""

    text: tuple[int, int]
    images: tuple[int, int] | None
    """None: none, the rank sees nothing."""


ALL_ROWS = ModuleRows(text=(0, 1), images=(0, 1))
"""All rows of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoForwardStep:
    """Callable forward step; `inspect_loss` sees every microbatch's loss sum, `rows` says what of it is read."""

    inspect_loss: Callable[[torch.Tensor], None] | None = None
    rows: ModuleRows = ALL_ROWS

    def __call__(
        self,
        data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
        model: torch.nn.Module,
        return_schedule_plan: bool = False,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], Loss]]:
        """Run one microbatch: token losses, shape [B, S], and the loss function for them.

        A microbatch holds `tokens`, `labels`, `position_ids` and `loss_mask`, each [B, S], and `images`, [B, 3, H, H].
        In each sequence as many tokens are the `image_token_id` as the picture has patches. Under context parallelism
        the losses are of this rank's part of each sequence. Waits for the device several times, to find and count those
        tokens. Of modules apart, a rank of the encoder returns what that says of the pictures, by the module's name.

        Raises:
            BatchError: there is no iterator, a key is missing, or `rows` does not divide it.
            ValueError: `return_schedule_plan` is set.
            ValueError: pictures have another number of patches than places, from Megatron Core.
        """
        if return_schedule_plan:
            raise ValueError(NO_SCHEDULE_PLAN.format("a model of several modules"))
        whole = next_microbatch(
            data_iterator,
            KEYS,
            reader="the model sees and reads",
            remedy="Use a dataset of pictures with captions.",
        )
        parameter = next(model.parameters())
        own = {key: _part(whole[key], self.rows.text) for key in KEYS if key != "images"}
        pictures = None
        if self.rows.images is not None:
            own["images"] = _part(whole["images"], self.rows.images)
        batch = to_device(own, [*own], device=parameter.device)
        if self.rows.images is not None:
            pictures = {VISION: {ENCODER: {"x": batch["images"].to(parameter.dtype)}}}
        losses, loss_mask = model(
            batch["tokens"],
            batch["position_ids"],
            loss_mask=batch["loss_mask"],
            labels=batch["labels"],
            modality_inputs=pictures,
        )
        return losses, partial(masked_next_token_loss, loss_mask, inspect_loss=self.inspect_loss)


def _part(whole: torch.Tensor, rows: tuple[int, int]) -> torch.Tensor:
    """Return the rows of one of so many equal parts, (its number, parts), without a copy.

    Raises:
        BatchError: the rows do not divide.
    """
    number, parts = rows
    if whole.size(0) % parts:
        raise BatchError(
            f"batch: {whole.size(0)} rows do not divide by {parts}, because each replica of a module takes as many. "
            "Set train.micro_batch_size to a multiple."
        )
    return whole.chunk(parts)[number]


def _without_causal_mask(block: TransformerBlockSubmodules) -> TransformerBlockSubmodules:
    """Take the causal mask from layers of a GPT, in place: their specs are new."""
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        attention.params = {**attention.params, "attn_mask_type": AttnMaskType.no_mask}
    return block


@contextmanager
def suppress_experimental_warnings() -> Iterator[None]:
    """Silence two notices, that the classes are experimental: this file's docstring says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(MimoModel|ModalitySubmodules) is experimental")
        yield
