"""Vision-language models: provider, batches and forward step.

Megatron Core calls its MIMO model experimental. Encoder, projection and language model are on the same ranks.

Shapes: B sequences of a microbatch, each with one image, S tokens of a sequence (all of them, also under context
parallelism), H pixels of an image's height and width.
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

from mb_models.errors import BatchError, EvaluationMetricsError
from mb_models.evaluation.metrics import ComputeMetrics, recorded_logits, with_metrics
from mb_models.gpt.provider import LayerSpec
from mb_models.gpt.transformer import transformer_config
from mb_models.mimo.config import MimoModelConfig, encoder_section, projection_section
from mb_models.provider import ModelProvider
from mb_models.training.batches import next_microbatch, to_device
from mb_models.training.forward_step import NO_SCHEDULE_PLAN, Loss, masked_next_token_loss

KEYS = ("tokens", "labels", "loss_mask", "position_ids", "images")
"""Keys of a microbatch."""

VISION, ENCODER = "vision", "patches"
"""Megatron's names of the modality and of its encoder, which are part of the names of weights."""


class PatchEncoder(CLIPViTModel):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's vision encoder with two changes.

    Its position embeddings are initialised like all other weights, and `tp_group` is set, which saving it requires.
    """

    def __init__(
        self, transformer_config: TransformerConfig, *, pg_collection: ProcessGroupCollection, **settings: Any
    ) -> None:
        super().__init__(transformer_config, pg_collection=pg_collection, **settings)
        self.tp_group = pg_collection.tp
        if transformer_config.perform_initialization:
            transformer_config.init_method(self.position_embeddings.weight)


class ColocatedMimoModel(MimoModel):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's MIMO model with all modules on every rank, and the attributes that wrappers and schedules read."""

    def __init__(self, config: MegatronMimoConfig, *, pg_collection: ProcessGroupCollection) -> None:
        super().__init__(config, cp_group=pg_collection.cp, tp_group=pg_collection.tp)
        self.pg_collection = pg_collection
        self.model_type = ModelType.encoder_or_decoder
        self.pre_process = self.post_process = True
        self.vp_stage = None


class MimoModelProvider(ModelProvider[MimoModelConfig, LayerSpec, ColocatedMimoModel]):
    """Builder of a vision-language model under explicit process groups, on one pipeline stage.

    `layer_spec` specifies the layers of both transformers. Initial weights of patches and positions, which are
    replicated on all ranks, come from torch's generator. `transformer` is the language model's configuration.

    Attributes:
        encoder: Megatron's configuration of the encoder.
        projection: Megatron's configuration of the MLP from the encoder to the language model.
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
        """Return the specification of the language model under these groups, all ranks of which hold it."""
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
                "scatter_embedding_sequence_parallel": False,  # images are inserted before the sequence is split
            },
        )

    def vision_spec(self, groups: ProcessGroupCollection) -> ModuleSpec:
        """Return the specification of encoder and projection under these groups, all ranks of which hold them."""
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
        """Return the layers of a transformer, all of them on this rank."""
        return self._layer_spec(transformer, vp_stage=None, pp_rank=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRows:
    """Rows of a complete microbatch that the modules of a rank process, as (index of a part, number of equal parts)."""

    text: tuple[int, int]
    images: tuple[int, int] | None
    """None: the rank processes no images."""


ALL_ROWS = ModuleRows(text=(0, 1), images=(0, 1))
"""All rows of both modalities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoForwardStep:
    """Callable forward step of a vision-language model."""

    inspect_loss: Callable[[torch.Tensor], None] | None = None
    """Receives every microbatch's loss sum."""
    rows: ModuleRows = ALL_ROWS
    """Rows of a microbatch that this rank processes."""
    compute_metrics: ComputeMetrics | None = None
    """Metrics of the user, logged with the losses of evaluations; see `GPTForwardStep`. Without context parallelism."""

    def __call__(
        self,
        data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
        model: torch.nn.Module,
        return_schedule_plan: bool = False,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], Loss]]:
        """Run one microbatch: token losses, shape [B, S], and the loss function for them.

        A microbatch holds `tokens`, `labels`, `position_ids` and `loss_mask`, each [B, S], and `images`, [B, 3, H, H].
        Each sequence holds one `image_token_id` per patch of its image. Under context parallelism the losses are those
        of this rank's part of each sequence. Synchronises with the device several times, to find and count the image
        tokens. If the modules are on separate ranks, a rank of the encoder returns its output by the module's name.

        Raises:
            BatchError: there is no iterator, a key is missing, or `rows` does not divide it.
            ValueError: `return_schedule_plan` is set.
            ValueError: the number of patches differs from the number of image tokens, from Megatron Core.
            EvaluationMetricsError: `compute_metrics` is set under context parallelism.
        """
        if return_schedule_plan:
            raise ValueError(NO_SCHEDULE_PLAN.format("a vision-language model"))
        microbatch = next_microbatch(
            data_iterator,
            KEYS,
            reader="the model reads images and text",
            remedy="Use a dataset of images with captions.",
        )
        parameter = next(model.parameters())
        local_batch = {key: _part(microbatch[key], self.rows.text) for key in KEYS if key != "images"}
        images = None
        if self.rows.images is not None:
            local_batch["images"] = _part(microbatch["images"], self.rows.images)
        batch = to_device(local_batch, [*local_batch], device=parameter.device)
        if self.rows.images is not None:
            images = {VISION: {ENCODER: {"x": batch["images"].to(parameter.dtype)}}}
        compute_metrics = None if model.training else self.compute_metrics
        with recorded_logits(model, needed=compute_metrics is not None) as logits:
            losses, loss_mask = model(
                batch["tokens"],
                batch["position_ids"],
                loss_mask=batch["loss_mask"],
                labels=batch["labels"],
                modality_inputs=images,
            )
        loss_function: Callable[[torch.Tensor], Loss] = partial(
            masked_next_token_loss, loss_mask, inspect_loss=self.inspect_loss
        )
        # A rank that holds only the encoder returns its output instead of losses.
        if compute_metrics is not None and isinstance(losses, torch.Tensor):
            if losses.shape != batch["labels"].shape:
                raise EvaluationMetricsError(
                    "compute_metrics: a vision-language model under context parallelism has the labels of complete "
                    "sequences and the losses of a part. Set model.context_parallel_size=1, or remove compute_metrics."
                )
            loss_function = with_metrics(
                loss_function,
                compute_metrics,
                labels_BS=batch["labels"],
                loss_mask_BS=loss_mask,
                logits=logits,
            )
        return losses, loss_function


def _part(tensor: torch.Tensor, rows: tuple[int, int]) -> torch.Tensor:
    """Return the rows of one of several equal parts, which `rows` gives as (index, number of parts), without a copy.

    Raises:
        BatchError: the rows are not divisible.
    """
    index, parts = rows
    if tensor.size(0) % parts:
        raise BatchError(
            f"batch: {tensor.size(0)} rows are not divisible by {parts}, because the replicas of a module share them. "
            "Set train.micro_batch_size to a multiple."
        )
    return tensor.chunk(parts)[index]


def _without_causal_mask(block: TransformerBlockSubmodules) -> TransformerBlockSubmodules:
    """Remove the causal mask from layers of a GPT, in place, because `layer_spec` returns new objects at each call."""
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        attention.params = {**attention.params, "attn_mask_type": AttnMaskType.no_mask}
    return block


@contextmanager
def suppress_experimental_warnings() -> Iterator[None]:
    """Suppress Megatron's two warnings that the classes are experimental, which this file's docstring states."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(MimoModel|ModalitySubmodules) is experimental")
        yield
