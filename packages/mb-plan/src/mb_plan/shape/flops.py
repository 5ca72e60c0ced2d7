"""Floating-point operations of a token, forward and backward, by part of the model.

A multiply-add counts as two operations, and each product once forward and once for the gradient of each factor that
has one: three times, if all weights are trained. A frozen weight has no gradient, and a product before the first
trained weight no gradient of its input. These are model FLOPs: norms, biases and recomputation are not counted, and of
the scores of causal attention only those that are not masked. Source: Narayanan et al., "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM" (2021), appendix; Dao, "FlashAttention-2" (2023), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mb_plan.shape.adapters import AHEAD, OUTPUT, Adapters
from mb_plan.shape.hybrid_pattern import ATTENTION, DELTA, LATENT, MAMBA, MAMBA_FILTER, MLP
from mb_plan.shape.model_shape import COLOURS, ModelShape, VisionShape
from mb_plan.shape.products import (
    Product,
    attended_width,
    cross_products,
    experts_of,
    layer_products,
    projection_products,
)
from mb_schema.attention_masks import attended_pairs, attended_positions

_ORDER = (
    *("attention_linear", "attention_core", "mlp", "router", "experts", "shared_experts", "mamba"),
    *("linear_attention", "mtp", "logits", "encoder"),
)


def flops_per_token(
    shape: ModelShape, *, seq_length: float | Mapping[float, float], adapters: Adapters | None = None
) -> dict[str, float]:
    """Return the operations of a token by part. Those of a T5 are per token of the encoder.

    Args:
        shape: Sizes of the model.
        seq_length: Tokens of a sequence, of the encoder if there is one. For sequences of different lengths, a mapping
            of each length to the number of sequences that have it.
        adapters: What is trained instead of the weights of the model; None: these are trained.
    """
    walk = _Walk(shape, adapters)
    lengths: Mapping[float, float] = seq_length if isinstance(seq_length, Mapping) else {seq_length: 1}
    mean_length = sum(length * number for length, number in lengths.items()) / sum(lengths.values())
    if shape.vision is not None:
        walk.image(shape.vision, per_token=1 / mean_length)
    if shape.encoder_layers:
        walk.encoder_decoder(mean_length)
    else:
        walk.decoder(lengths)
    return {name: walk.parts[name] for name in _ORDER if walk.parts.get(name)}


@dataclass(slots=True)
class _Walk:
    """Counts the products of a model in the order of the forward pass."""

    shape: ModelShape
    adapters: Adapters | None
    flows: bool = field(init=False)
    """The hidden states have gradients: a weight before has been trained, such as that of the embedding."""
    parts: dict[str, float] = field(default_factory=dict)
    times: float = 1.0
    """Tokens that are counted, per token of the result."""

    def __post_init__(self) -> None:
        self.flows = self.adapters is None

    def add(self, part: str, forward: float, *, backward: int) -> None:
        """Add operations of the forward pass, and so many times as many of the backward pass."""
        self.parts[part] = self.parts.get(part, 0.0) + self.times * forward * (1 + backward)

    def product(self, name: str, product: Product, *, flows: bool) -> bool:
        """Count a product and its adapters; return whether its result has a gradient.

        Args:
            name: Name of the layer in the model.
            product: The product.
            flows: Its input has a gradient.
        """
        often = 2.0 * (experts_of(self.shape).top_k if product.grouped else 1)
        trained = self.adapters is None
        self.add(product.part, often * product.inputs * product.outputs, backward=flows + trained)
        if self.adapters is None:
            return flows
        widths, rank = self.adapters.widths(name, product), self.adapters.rank_of(product, self.shape)
        for width in widths:
            self.add(product.part, often * rank * product.inputs, backward=flows + 1)
            self.add(product.part, often * rank * width, backward=2)
        return flows or bool(widths)

    def layer(self, letters: str, prefix: str, positions: float) -> None:
        """Count a layer of a hybrid model, or the two halves of a layer of a GPT."""
        for letter in letters:
            self._half_layer(letter, prefix, positions)

    def _half_layer(self, letter: str, prefix: str, positions: float) -> None:
        branches: dict[str, bool] = {}
        for product in layer_products(self.shape, letter):
            joined = self.flows or any(branches.values())
            if product.row and not product.branch:
                self._core(letter, positions, flows=joined)
            flows = branches.get(product.branch, self.flows) if product.branch else joined
            name = f"{prefix}.{product.module}"
            branches[product.branch] = self.product(name, product, flows=flows)
        self.flows = self.flows or any(branches.values())

    def _core(self, letter: str, positions: float, *, flows: bool) -> None:
        """Count what a layer computes between its projections: attention, or convolution and recurrence.

        Mamba adds the outer product of input and B to the state, and reads it with C: Dao and Gu, "Transformers are
        SSMs" (2024), equation 1. The gated delta rule reads the state with the key, adds a correction, and reads it
        with the query: Yang et al., "Gated Delta Networks" (2024), equation 10. Chunked kernels do more work.
        """
        both, shape = 2 * flows, self.shape
        filters = flows + (self.adapters is None)
        if letter in (ATTENTION, LATENT):
            self.add("attention_core", 2 * positions * attended_width(shape, letter), backward=both)
        elif letter == MAMBA:
            pattern = shape.hybrid
            inner, states = pattern.mamba_heads * pattern.mamba_head, 2 * pattern.mamba_groups * pattern.state
            self.add("mamba", 2.0 * (inner + states) * MAMBA_FILTER, backward=filters)
            self.add("mamba", 4.0 * inner * pattern.state, backward=both)
        elif letter == DELTA:
            pattern = shape.hybrid
            values = pattern.value_heads * pattern.value_head
            mixed = 2 * pattern.key_channels + values
            self.add("linear_attention", 2.0 * mixed * pattern.delta_filter, backward=filters)
            self.add("linear_attention", 6.0 * values * pattern.key_head, backward=both)

    def decoder(self, lengths: Mapping[float, float]) -> None:
        """Count a decoder, its depths of multi-token prediction and its output layers."""
        shape = self.shape
        positions = {
            windowed: attended_positions(lengths, window=shape.window if windowed else None)
            for windowed in (False, True)
        }
        for number, letters in enumerate(shape.layers):
            self.layer(letters, f"decoder.layers.{number}", positions[shape.has_window(number)])
        for depth, letters in enumerate(shape.ahead):
            main, self.parts = self.parts, {}
            name = f"mtp.layers.{0 if shape.mtp_repeated else depth}"
            joined = Product("mtp", 2 * shape.hidden, shape.hidden)
            self.flows = self.product(f"{name}.{AHEAD}", joined, flows=self.flows)
            number = 0 if shape.mtp_repeated else depth  # Megatron numbers them from the start again
            for layer, letter in enumerate(letters):
                position = number if shape.pattern is None else layer
                self.layer(letter, f"{name}.mtp_model_layer", positions[shape.has_window(position)])
            self._logits()
            own, self.parts = sum(self.parts.values()), main
            self.parts["mtp"] = self.parts.get("mtp", 0.0) + own
        self._logits()

    def _logits(self) -> None:
        shape = self.shape
        # a tied output layer has no weight that adapters could be added to
        name = "" if shape.tied else OUTPUT
        self.product(name, Product("logits", shape.hidden, shape.vocab), flows=self.flows)

    def encoder_decoder(self, seq_length: float) -> None:
        """Count a T5: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1."""
        shape, start = self.shape, self.flows
        decoded = shape.decoder_length or seq_length
        for number in range(shape.encoder_layers):
            positions = attended_pairs(seq_length, causal=False) / seq_length
            self.layer(ATTENTION + MLP, f"encoder.layers.{number}", positions)
        encoded, self.flows, share = self.flows, start, decoded / seq_length
        for number in range(shape.num_layers):
            name = f"decoder.layers.{number}"
            self.times = share
            self.layer(ATTENTION, name, attended_pairs(decoded) / decoded)
            into, both, back = cross_products(shape)
            crossed = self.product(f"{name}.{into.module}", into, flows=self.flows)
            self.times = 1.0
            crossed |= self.product(f"{name}.{both.module}", both, flows=encoded)
            self.times = share
            self.add("attention_core", 4.0 * seq_length * shape.heads * shape.head, backward=2 * crossed)
            self.flows |= self.product(f"{name}.{back.module}", back, flows=crossed)
            self.layer(MLP, name, 0.0)
        self._logits()
        self.times = 1.0

    def image(self, vision: VisionShape, *, per_token: float) -> None:
        """Count an image, whose patches have no gradient."""
        own = _Walk(self.shape.image_encoder, self.adapters, times=vision.num_patches * per_token)
        patches = COLOURS * vision.patch**2 * vision.hidden
        own.add("encoder", 2.0 * patches, backward=int(self.adapters is None))
        for number in range(vision.layers):
            own.layer(ATTENTION + MLP, f"vision.encoder.layers.{number}", float(vision.num_patches))
        for product in projection_products(self.shape):
            own.flows = own.product(f"vision.{product.module}", product, flows=own.flows)
        self.flows = own.flows
        self.parts["encoder"] = sum(own.parts.values())  # the first part that is counted
