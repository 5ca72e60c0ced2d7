"""Vision encoder and projection of a vision-language model: rank layout and parameters by part."""

from __future__ import annotations

from dataclasses import dataclass

from mb_plan.memory.parameter_counts import ParameterCount, copied, layer_parts, linear_parameters, total
from mb_plan.shape.hybrid_pattern import ATTENTION, MLP
from mb_plan.shape.model_shape import COLOURS, ModelShape
from mb_plan.shape.products import projection_products


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLayout:
    """Ranks of the two modules of a vision-language model."""

    first: int
    """First rank of the language model; 0: both modules are on all ranks."""
    vision_tp: int
    language_tp: int

    def data_parallel(self, world: int) -> tuple[int, int]:
        """Return the replicas of the encoder and of the language model."""
        return (self.first or world) // self.vision_tp, (world - self.first) // self.language_tp

    def problem(self, world: int) -> str | None:
        """Return why the modules do not fit this number of processes, or None if they do."""
        vision, language = self.first or world, world - self.first
        if language < 1 or vision % self.vision_tp or language % self.language_tp:
            return (
                f"{world} processes leave the encoder {vision} ranks for tp {self.vision_tp}, and the language model "
                f"{max(0, language)} for tp {self.language_tp}"
            )
        replicas = vision // self.vision_tp, language // self.language_tp
        if max(replicas) % min(replicas):
            return (
                f"{world} processes have {replicas[0]} replicas of the encoder and {replicas[1]} of the language "
                "model, and neither number divides the other"
            )
        return None


def module_layout(shape: ModelShape) -> ModuleLayout | None:
    """Return the layout of modules with separate ranks or parallel sizes, or None if there is one layout."""
    vision = shape.vision
    if vision is None or (vision.language_first == 0 and vision.tp == shape.tp):
        return None
    return ModuleLayout(first=vision.language_first, vision_tp=vision.tp, language_tp=shape.tp)


def vision_parts(shape: ModelShape) -> dict[str, ParameterCount]:
    """Count the parameters of the encoder and the projection. Returns an empty mapping for a model without an encoder.

    Layers and projection are sharded over tensor-parallel ranks. Patch embedding, positions and norms are replicated.
    All linear layers have biases, and norms have two tensors.

    Raises:
        PlanError: If a size does not divide by its number of ranks.
    """
    vision = shape.vision
    if vision is None:
        return {}
    encoder = shape.image_encoder
    pixels = COLOURS * vision.patch**2
    embedding = copied((pixels + 1 + vision.num_patches + 2) * vision.hidden)
    layers = total(layer_parts(encoder, ATTENTION + MLP)) * vision.layers
    projection = [linear_parameters(encoder, product) for product in projection_products(shape)]
    return {"encoder": layers + embedding, "projection": sum(projection, ParameterCount())}
