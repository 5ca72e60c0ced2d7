"""Work of the parts of a model for one microbatch on one GPU, forward and backward.

Legend: T tokens of the microbatch on a context-parallel rank. Backward passes take twice the products of forward
passes, and 2.5 times the attention, which recomputes its scores (Dao, "FlashAttention-2", 2023). Adapters train no
weights of the base model, so that a product is computed twice instead of three times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields

from mb_plan.errors import PlanError
from mb_plan.shape.hybrid_pattern import ATTENTION, EXPERTS, LATENT, MAMBA, MLP
from mb_plan.shape.model_shape import ModelShape
from mb_plan.shape.products import Product, attended_width, experts_of, latent_of, layer_products

BYTES = 2
"""Bytes of an activation (BF16)."""
KERNELS = {ATTENTION: 36, LATENT: 50, MLP: 20, EXPERTS: 75, MAMBA: 36}
"""Kernels of a part, forward and backward, with Transformer Engine's layers: an approximate count."""
KERNELS_OF_EXPERT = 12
"""Further kernels for each expert of a rank: its products, and the conversions of their inputs."""
CAPTURED: Mapping[str, Mapping[str, float]] = {
    "attn": {ATTENTION: 1.0, LATENT: 1.0},
    "mamba": {MAMBA: 1.0},
    "mlp": {MLP: 1.0},
    "moe": {EXPERTS: 1.0},
    "moe_router": {EXPERTS: 0.2},
    "moe_preprocess": {EXPERTS: 0.2},
}
"""Module of `cuda_graph_modules` to the fraction of the kernels of a part that its graphs contain."""
LOGIT_BYTES = 32
"""Bytes moved for a logit: written, read and written by the loss in BF16 and float32, its gradient read twice."""
SCAN_CHUNK = 256
"""Tokens of a chunk in Mamba's scan. Source: Dao and Gu, "Transformers are SSMs" (2024), section 6."""


@dataclass(slots=True, kw_only=True)
class Work:
    """Work of one GPU; sums are taken field by field."""

    dense: float = 0.0
    """Seconds of products with weights in BF16."""
    quantised: float = 0.0
    """Seconds of products with weights in the precision of the run."""
    grouped: float = 0.0
    """Seconds of the grouped products of experts."""
    head: float = 0.0
    """FLOPs of the output layer, which is computed in BF16."""
    attention: float = 0.0
    """FLOPs of attention without its projections."""
    exponentials: float = 0.0
    """Of the softmax, forward and again backward."""
    chunks: float = 0.0
    """FLOPs of Mamba's scan, in BF16."""
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
    """Bytes that a GPU sends to experts on other ranks over NVLink."""
    routed_away: float = 0.0
    """Bytes that it sends to experts over the network."""
    waits: float = 0.0
    """Times that the host waits for the GPU, to know how many tokens each expert has."""
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
    dispatcher: str = "alltoall"
    """How tokens are sent to experts: "allgather", "alltoall", "deepep", "hybridep"."""
    domain: int = 8
    """GPUs that NVLink connects."""
    captured: Collection[str] = ()
    """Modules in CUDA graphs."""
    recomputed: Collection[str] = ()
    """Modules that are computed a second time in the backward pass."""
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

    def again(self, *modules: str, forward: float = 1 / 3) -> float:
        """Return the factor of the work of a part: its forward pass is done twice if it is in a recomputed module."""
        return 1 + forward * any(module in self.batch.recomputed for module in modules)

    def product(self, columns: float, rows: float, *modules: str) -> None:
        """Count `T x rows` times `rows x columns`, with what its kernels move."""
        seconds = self.again(*modules) * self._seconds(self.batch.tokens, columns, rows, 1)
        if self.batch.quantised:
            self.work.quantised += seconds
        else:
            self.work.dense += seconds
        self.work.weights += rows * columns
        self._quantise(self.batch.tokens * (rows + columns), rows * columns)

    def grouped(self, tokens: float, columns: float, rows: float, experts: float) -> None:
        """Count the products of the experts of a rank: `tokens` rows in all, in groups."""
        self.work.grouped += self.again("moe") * self._seconds(tokens, columns, rows, experts)
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

    def elementwise(self, elements: float, *modules: str) -> None:
        """Count elements that are read or written per token forward, and twice as many backward."""
        self.work.moved += self.again(*modules) * 3 * BYTES * self.batch.tokens * elements

    def exchange(self) -> None:
        """Count the collectives of sequence parallelism around a part: two forward, three backward."""
        tp = self.shape.tp
        self.work.tensor += 5 * (tp - 1) / tp * BYTES * self.batch.tokens * self.shape.hidden


def _attention(part: _Part) -> None:
    shape, batch = part.shape, part.batch
    heads, groups = shape.heads / shape.tp, shape.groups / min(shape.tp, shape.groups)
    _scores(part, ATTENTION, _context(shape, batch))
    part.elementwise(5 * shape.hidden / shape.tp, "layernorm")
    part.elementwise(2 * (heads + groups) * shape.head)
    part.elementwise(2 * (heads + groups) * shape.head, "core_attn")
    part.work.context += 3 * 2 * BYTES * (shape.cp - 1) * batch.tokens * groups * shape.head


def _scores(part: _Part, letter: str, context: float) -> None:
    """Count scores, softmax and the sum of values; the backward pass computes scores and exponentials again."""
    shape, again = part.shape, part.again("core_attn", forward=2 / 7)
    scores = again * part.batch.tokens * context
    part.work.attention += 7 * scores * attended_width(shape, letter, tp=shape.tp)
    part.work.exponentials += 2 * scores * shape.heads / shape.tp


def _context(shape: ModelShape, batch: Batch) -> float:
    """Return the positions to which a token attends on average, over layers with and without a window."""
    if shape.window is None or shape.window[0] < 0:
        return batch.context
    windowed = sum(map(shape.has_window, range(shape.num_layers))) / shape.num_layers
    return (1 - windowed) * batch.context + windowed * min(sum(shape.window) + 1.0, batch.context)


def _latent(part: _Part) -> None:
    shape, batch, latent = part.shape, part.batch, latent_of(part.shape)
    heads, query = shape.heads / shape.tp, latent.qk_head + latent.qk_position
    _scores(part, LATENT, batch.context)
    part.elementwise(5 * shape.hidden / shape.tp, "layernorm")
    expanded = 2 * latent.qk_position + (latent.qk_head + latent.v_head) + (query + latent.v_head)
    part.elementwise(heads * expanded, "mla_up_proj")
    part.elementwise(heads * (2 * query + 2 * latent.v_head), "core_attn")
    part.work.context += 3 * BYTES * (shape.cp - 1) * batch.tokens * heads * (query + latent.v_head)


def _mlp(part: _Part) -> None:
    shape = part.shape
    halves = 2 if shape.gated else 1
    part.elementwise(5 * shape.hidden / shape.tp, "layernorm")
    part.elementwise((halves + 1) * shape.ffn / shape.tp, "mlp")


def _experts(part: _Part) -> None:
    shape, batch, experts = part.shape, part.batch, experts_of(part.shape)
    halves, width = 2 if shape.gated else 1, experts.latent or shape.hidden
    activated = 0 if batch.fused else (halves + 1) * experts.width
    if shape.bias:  # added, and its gradient summed, by kernels of their own; nor is the activation fused
        activated += 4 * halves * experts.width + 2 * shape.hidden
    part.elementwise(5 * shape.hidden / shape.tp, "layernorm", "moe")
    part.elementwise(experts.top_k * (2 if batch.fused else 4) * width / shape.tp, "moe")
    part.elementwise(experts.top_k * activated / shape.tp, "moe", "moe_act")
    sent = part.again("moe", forward=1 / 2) * 4 * BYTES * batch.tokens / shape.tp * width
    near, away = _copies(shape.ep, experts.top_k, batch)
    part.work.routed += sent * near
    part.work.routed_away += sent * away
    part.work.waits += shape.ep > 1 and batch.dispatcher == "alltoall" and experts.capacity_factor is None


def _copies(ranks: int, top_k: int, batch: Batch) -> tuple[float, float]:
    """Return the copies of a token that are sent to other ranks: within the NVLink domain, and over the network.

    An all-to-all sends one to each expert, and "allgather" one to each rank. DeepEP and HybridEP send one to each rank
    that has an expert of the token, and over the network one to each domain, whose GPUs pass it on.
    """
    inside = min(ranks, batch.domain)
    domains = ranks / inside
    if batch.dispatcher == "allgather":
        return inside - 1, ranks - inside
    if batch.dispatcher == "alltoall":
        return top_k * (inside - 1) / ranks, top_k * (1 - 1 / domains)
    reached = ranks * (1 - (1 - 1 / ranks) ** top_k)
    return reached * (ranks - 1) / ranks, domains * (1 - (1 - 1 / domains) ** top_k) * (1 - 1 / domains)


def _mamba(part: _Part) -> None:
    shape, batch, pattern = part.shape, part.batch, part.shape.hybrid
    inner = pattern.mamba_heads * pattern.mamba_head / shape.tp
    states = 2 * pattern.mamba_groups * pattern.state / shape.tp
    part.work.chunks += 3 * 2 * batch.tokens * inner * (2 * pattern.state + SCAN_CHUNK)
    part.elementwise(5 * shape.hidden / shape.tp, "layernorm")
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
            part.product(product.outputs, product.inputs, *_modules(product, letter))
    _COUNT[letter](part)
    if letter != EXPERTS:  # their exchange is the routing
        part.exchange()
    captured = sum(CAPTURED.get(module, {}).get(letter, 0.0) for module in batch.captured)
    part.work.captured = KERNELS[letter] * min(1.0, captured)
    part.work.kernels = KERNELS[letter]
    if letter == EXPERTS:
        part.work.kernels += KERNELS_OF_EXPERT * experts_of(shape).number / shape.ep
    return part.work


def _modules(product: Product, letter: str) -> tuple[str, ...]:
    """Return the modules of `recompute_modules` that contain a product."""
    if letter == LATENT:
        return ("mla_up_proj",) if product.module.endswith("_up_proj") else ()
    return {MLP: ("mlp",), EXPERTS: ("moe", product.part)}.get(letter, ())


def model_work(
    shape: ModelShape, batch: Batch, bf16: Batch, ends: tuple[int, int] = (0, 0)
) -> tuple[Work, Work]:
    """Return the work of a microbatch on an average pipeline rank: that of layers, and that of output layers.

    Args:
        shape: Sizes of the model.
        batch: Microbatch in the precision of the run.
        bf16: The same in BF16.
        ends: Numbers of layers at the start and at the end that are computed in BF16.

    Raises:
        PlanError: The model has parts whose time is not modelled.
    """
    _reject_unmodelled(shape)
    work = Work()
    start, stop = ends[0], max(ends[0], len(shape.layers) - ends[1])
    inner, outer = [*shape.layers[start:stop], *shape.ahead], [*shape.layers[:start], *shape.layers[stop:]]
    for layers, of in ((inner, batch), (outer, bf16)):
        letters = "".join(layers)
        for letter in _COUNT:
            times = letters.count(letter)
            if times:
                work.add(part_work(shape, of, letter), times / shape.pp)
    outputs = 1 + len(shape.ahead)
    columns = shape.vocab / shape.tp
    output = Work(
        head=batch.passes * 2 * batch.tokens * shape.hidden * columns,
        moved=LOGIT_BYTES * batch.tokens * columns,
        weights=2 * shape.hidden * columns / outputs,
    )
    head = Work()
    head.add(output, outputs / shape.pp)
    return work, head


def _reject_unmodelled(shape: ModelShape) -> None:
    unknown = sorted(set("".join([*shape.layers, *shape.ahead])) - {*_COUNT})
    for name, what in (
        ("decoder_seq_length", "an encoder and a decoder" if shape.encoder_layers else ""),
        ("vision_num_layers", "a vision encoder" if shape.vision is not None else ""),
        ("hybrid_layer_pattern", f"layers {', '.join(unknown)}" if unknown else ""),
    ):
        if what:
            raise PlanError(f"model.{name}: the time of {what} is not modelled. Measure a few steps.")
