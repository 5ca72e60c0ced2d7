"""Work of the parts of a model for one microbatch on one GPU, forward and backward.

Legend: T tokens of the microbatch on a context-parallel rank. Backward passes take twice the products of forward
passes, and 2.5 times the attention, which recomputes its scores (Dao, "FlashAttention-2", 2023). Adapters train no
weights of the base model, so that a product is computed twice instead of three times.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from mb_plan.errors import PlanError
from mb_plan.shape.hybrid_pattern import ATTENTION, EXPERTS, LATENT, MAMBA, MLP
from mb_plan.shape.model_shape import ModelShape
from mb_plan.shape.products import attended_width, experts_of, latent_of, layer_products

BYTES = 2
"""Bytes of an activation (BF16)."""
KERNELS = {ATTENTION: 36, LATENT: 50, MLP: 20, EXPERTS: 75, MAMBA: 36}
"""Kernels of a part, forward and backward, with Transformer Engine's layers: an approximate count."""
KERNELS_OF_EXPERT = 12
"""Further kernels for each expert of a rank: its products, and the conversions of their inputs."""
CAPTURED = {ATTENTION: 1.0, LATENT: 1.0, MLP: 1.0, EXPERTS: 0.4, MAMBA: 1.0}
"""Fraction of these kernels in graphs of modules: of the experts only router and preparation."""
LOGIT_BYTES = 32
"""Bytes moved for a logit: written, read and written by the loss in BF16 and float32, its gradient read twice."""
SCAN_CHUNK = 256
"""Tokens of a chunk in Mamba's scan. Source: Dao and Gu, "Transformers are SSMs" (2024), section 6."""


@dataclass(slots=True, kw_only=True)
class Work:
    """Work of one GPU; sums are taken field by field."""

    dense: float = 0.0
    """Seconds of products with weights."""
    grouped: float = 0.0
    """Seconds of the grouped products of experts."""
    head: float = 0.0
    """FLOPs of the output layer, which is computed in BF16."""
    attention: float = 0.0
    """FLOPs of attention without its projections, and of Mamba's scan, in BF16."""
    moved: float = 0.0
    """Bytes read and written by kernels."""
    scanned: float = 0.0
    """Bytes read and written by Mamba's convolution and scan."""
    kernels: float = 0.0
    captured: float = 0.0
    """Kernels that graphs of modules contain."""
    tensor: float = 0.0
    """Bytes exchanged by tensor parallelism."""
    context: float = 0.0
    """Bytes exchanged by context parallelism."""
    routed: float = 0.0
    """Tokens times width sent to experts on other ranks, in bytes, by a GPU: to each rank at most once."""
    weights: float = 0.0
    """Dense weights on this GPU."""
    expert_weights: float = 0.0
    """Weights of experts on this GPU."""

    def add(self, other: Work, times: float = 1.0) -> None:
        """Add the work of a part."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + times * getattr(other, item.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Microbatch on one rank, and what determines the work per token."""

    tokens: float
    """T."""
    context: float
    """Positions to which a token attends on average."""
    peak: float
    """FLOP/s of products in the precision of the run."""
    memory: float
    """Bytes/s of the device memory."""
    quantised: bool
    """Inputs of products are converted to eight or four bits."""
    fused: bool
    """Conversions and activations of experts are parts of their products' kernels."""
    passes: float = 3.0
    """Passes of a product: forward, and two backward; 2 with frozen weights."""

    @property
    def operand_bytes(self) -> float:
        """Bytes of an element of a product's input."""
        return 1.0 if self.quantised else float(BYTES)


@dataclass(slots=True)
class _Part:
    """Collects the work of one part."""

    shape: ModelShape
    batch: Batch
    work: Work = field(default_factory=Work)

    def product(self, columns: float, rows: float) -> None:
        """Count `T x rows` times `rows x columns`, with what its kernels move."""
        self.work.dense += self._seconds(self.batch.tokens, columns, rows, 1)
        self.work.weights += rows * columns
        self._quantise(self.batch.tokens * (rows + columns), rows * columns)

    def grouped(self, tokens: float, columns: float, rows: float, experts: float) -> None:
        """Count the products of the experts of a rank: `tokens` rows in all, in groups."""
        self.work.grouped += self._seconds(tokens, columns, rows, experts)
        self.work.expert_weights += experts * rows * columns
        if not self.batch.fused:
            self._quantise(tokens * (rows + columns), experts * rows * columns)

    def _seconds(self, tokens: float, columns: float, rows: float, matrices: float) -> float:
        """Return the time of products at the peak of the matrix units, or at the memory's speed if that is longer."""
        batch = self.batch
        moved = batch.operand_bytes * (tokens * rows + matrices * rows * columns) + BYTES * tokens * columns
        return batch.passes * max(2 * tokens * rows * columns / batch.peak, moved / batch.memory)

    def _quantise(self, activations: float, weights: float) -> None:
        """Count the conversion of inputs and gradients: BF16 is read, two copies of a byte are written."""
        if self.batch.quantised:
            self.work.moved += (BYTES + 2) * activations + BYTES * weights

    def elementwise(self, elements: float) -> None:
        """Count elements that are read or written per token forward, and twice as many backward."""
        self.work.moved += 3 * BYTES * self.batch.tokens * elements

    def exchange(self) -> None:
        """Count the collectives of sequence parallelism around a part: two forward, three backward."""
        tp = self.shape.tp
        self.work.tensor += 5 * (tp - 1) / tp * BYTES * self.batch.tokens * self.shape.hidden


def _attention(part: _Part) -> None:
    shape, batch = part.shape, part.batch
    heads, groups = shape.heads / shape.tp, shape.groups / min(shape.tp, shape.groups)
    part.work.attention += (
        7 * batch.tokens * _context(shape, batch) * attended_width(shape, ATTENTION, tp=shape.tp)
    )
    part.elementwise(5 * shape.hidden / shape.tp + 4 * (heads + 2 * groups) * shape.head)
    part.work.context += 3 * 2 * BYTES * (shape.cp - 1) * batch.tokens * groups * shape.head


def _context(shape: ModelShape, batch: Batch) -> float:
    """Return the positions to which a token attends on average, over layers with and without a window."""
    if shape.window is None or shape.window[0] < 0:
        return batch.context
    windowed = sum(map(shape.has_window, range(shape.num_layers))) / shape.num_layers
    return (1 - windowed) * batch.context + windowed * min(sum(shape.window) + 1.0, batch.context)


def _latent(part: _Part) -> None:
    shape, batch, latent = part.shape, part.batch, latent_of(part.shape)
    heads, query = shape.heads / shape.tp, latent.qk_head + latent.qk_position
    part.work.attention += 7 * batch.tokens * batch.context * attended_width(shape, LATENT, tp=shape.tp)
    part.elementwise(5 * shape.hidden / shape.tp + 4 * heads * (2 * query + latent.v_head))
    part.work.context += 3 * BYTES * (shape.cp - 1) * batch.tokens * heads * (query + latent.v_head)


def _mlp(part: _Part) -> None:
    shape = part.shape
    halves = 2 if shape.gated else 1
    part.elementwise((5 * shape.hidden + (halves + 1) * shape.ffn) / shape.tp)


def _experts(part: _Part) -> None:
    shape, batch, experts = part.shape, part.batch, experts_of(part.shape)
    halves, width = 2 if shape.gated else 1, experts.latent or shape.hidden
    activated = 0 if batch.fused else (halves + 1) * experts.width
    if shape.bias:  # added, and its gradient summed, by kernels of their own; nor is the activation fused
        activated += 4 * halves * experts.width + 2 * shape.hidden
    permuted = experts.top_k * ((2 if batch.fused else 4) * width + activated)
    part.elementwise((5 * shape.hidden + permuted) / shape.tp)
    reached = shape.ep * (1 - (1 - 1 / shape.ep) ** experts.top_k)  # ranks that a token is sent to
    others = reached * (shape.ep - 1) / shape.ep
    part.work.routed += 4 * others * BYTES * batch.tokens / shape.tp * width


def _mamba(part: _Part) -> None:
    shape, batch, pattern = part.shape, part.batch, part.shape.hybrid
    inner = pattern.mamba_heads * pattern.mamba_head / shape.tp
    states = 2 * pattern.mamba_groups * pattern.state / shape.tp
    part.work.attention += 3 * 2 * batch.tokens * inner * (2 * pattern.state + SCAN_CHUNK)
    part.elementwise(5 * shape.hidden / shape.tp)
    part.work.scanned += 3 * BYTES * batch.tokens * (14 * inner + 6 * states)


_COUNT = {ATTENTION: _attention, LATENT: _latent, MLP: _mlp, EXPERTS: _experts, MAMBA: _mamba}
"""Letter of a layer to the function that counts what it does besides the products of `layer_products`."""


def part_work(shape: ModelShape, batch: Batch, letter: str) -> Work:
    """Return the work of a layer of a hybrid model, or of one of the two halves of a layer of a GPT."""
    part = _Part(shape, batch)
    for product in layer_products(shape, letter, tp=shape.tp):
        if product.grouped:
            experts = experts_of(shape)
            rows = batch.tokens / shape.tp * experts.top_k
            part.grouped(rows, product.outputs, product.inputs, experts.number / shape.ep)
        elif product.part != "router":  # in float32 and so small that its time is that of its kernels
            part.product(product.outputs, product.inputs)
    _COUNT[letter](part)
    if letter != EXPERTS:  # their exchange is the routing
        part.exchange()
    part.work.captured = CAPTURED[letter] * KERNELS[letter]
    part.work.kernels = KERNELS[letter]
    if letter == EXPERTS:
        part.work.kernels += KERNELS_OF_EXPERT * experts_of(shape).number / shape.ep
    return part.work


def model_work(shape: ModelShape, batch: Batch) -> Work:
    """Return the work of a microbatch on an average pipeline rank.

    Raises:
        PlanError: The model has parts whose time is not modelled.
    """
    _reject_unmodelled(shape)
    work = Work()
    letters = "".join([*shape.layers, *shape.ahead])
    for letter in _COUNT:
        times = letters.count(letter)
        if times:
            work.add(part_work(shape, batch, letter), times / shape.pp)
    outputs = 1 + len(shape.ahead)
    columns = shape.vocab / shape.tp
    head = Work(
        head=batch.passes * 2 * batch.tokens * shape.hidden * columns,
        moved=LOGIT_BYTES * batch.tokens * columns,
        weights=2 * shape.hidden * columns / outputs,
    )
    work.add(head, outputs / shape.pp)
    return work


def _reject_unmodelled(shape: ModelShape) -> None:
    unknown = sorted(set("".join([*shape.layers, *shape.ahead])) - {*_COUNT})
    for name, what in (
        ("decoder_seq_length", "an encoder and a decoder" if shape.encoder_layers else ""),
        ("vision_num_layers", "a vision encoder" if shape.vision is not None else ""),
        ("hybrid_layer_pattern", f"layers {', '.join(unknown)}" if unknown else ""),
    ):
        if what:
            raise PlanError(f"model.{name}: the time of {what} is not modelled. Measure a few steps.")
