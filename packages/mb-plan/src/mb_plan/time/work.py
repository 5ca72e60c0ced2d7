"""Work of the parts of a model for one microbatch on one GPU, forward and backward.

Legend: T tokens of the microbatch on a context-parallel rank. Backward passes take twice the products of forward
passes, and 2.5 times the attention, which recomputes its scores (Dao, "FlashAttention-2", 2023). Adapters train no
weights of the base model, so that a product is computed twice instead of three times.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from mb_plan.time.sizes import ATTENTION, EXPERTS, LATENT, MAMBA, MLP, Sizes

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

    sizes: Sizes
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
        sizes = self.sizes
        share = (sizes.tp - 1) / sizes.tp
        self.work.tensor += 5 * share * BYTES * self.batch.tokens * sizes.hidden


def _attention(part: _Part) -> None:
    sizes, batch = part.sizes, part.batch
    heads, groups = sizes.heads / sizes.tp, sizes.groups / min(sizes.tp, sizes.groups)
    part.product((heads + 2 * groups) * sizes.head, sizes.hidden)
    part.product(sizes.hidden, heads * sizes.head)
    context = batch.context
    if sizes.window is not None:
        context = (1 - sizes.windowed) * context + sizes.windowed * min(sizes.window, context)
    part.work.attention += 3.5 * 4 * batch.tokens * context * heads * sizes.head
    part.elementwise(5 * sizes.hidden / sizes.tp + 4 * (heads + 2 * groups) * sizes.head)
    part.work.context += 3 * 2 * BYTES * (sizes.cp - 1) * batch.tokens * groups * sizes.head
    part.exchange()


def _latent(part: _Part) -> None:
    sizes, batch = part.sizes, part.batch
    heads, query = sizes.heads / sizes.tp, sizes.qk_head + sizes.qk_position
    if sizes.q_rank:
        part.product(sizes.q_rank, sizes.hidden)
    part.product(heads * query, sizes.q_rank or sizes.hidden)
    part.product(sizes.kv_rank + sizes.qk_position, sizes.hidden)
    part.product(heads * (sizes.qk_head + sizes.v_head), sizes.kv_rank)
    part.product(sizes.hidden, heads * sizes.v_head)
    part.work.attention += 3.5 * 2 * batch.tokens * batch.context * heads * (query + sizes.v_head)
    part.elementwise(5 * sizes.hidden / sizes.tp + 4 * heads * (2 * query + sizes.v_head))
    part.work.context += 3 * BYTES * (sizes.cp - 1) * batch.tokens * heads * (query + sizes.v_head)
    part.exchange()


def _mlp(part: _Part) -> None:
    sizes = part.sizes
    width, halves = sizes.ffn / sizes.tp, 2 if sizes.gated else 1
    part.product(halves * width, sizes.hidden)
    part.product(sizes.hidden, width)
    part.elementwise(5 * sizes.hidden / sizes.tp + (halves + 1) * width)
    part.exchange()


def _experts(part: _Part) -> None:
    sizes, batch = part.sizes, part.batch
    halves = 2 if sizes.gated else 1
    own = batch.tokens / sizes.tp
    rows = own * sizes.top_k
    experts = sizes.experts / sizes.ep
    part.grouped(rows, halves * sizes.expert_width, sizes.expert_hidden, experts)
    part.grouped(rows, sizes.expert_hidden, sizes.expert_width, experts)
    if sizes.expert_hidden != sizes.hidden:
        part.product(sizes.expert_hidden / sizes.tp, sizes.hidden)
        part.product(sizes.hidden, sizes.expert_hidden / sizes.tp)
    if sizes.shared_width:
        part.product(halves * sizes.shared_width / sizes.tp, sizes.hidden)
        part.product(sizes.hidden, sizes.shared_width / sizes.tp)
    activated = 0 if batch.fused else (halves + 1) * sizes.expert_width
    if sizes.bias:  # added, and its gradient summed, by kernels of their own; nor is the activation fused
        activated += 4 * halves * sizes.expert_width + 2 * sizes.hidden
    permuted = sizes.top_k * ((2 if batch.fused else 4) * sizes.expert_hidden + activated)
    part.elementwise((5 * sizes.hidden + permuted) / sizes.tp)
    reached = sizes.ep * (1 - (1 - 1 / sizes.ep) ** sizes.top_k)  # ranks that a token is sent to
    others = reached * (sizes.ep - 1) / sizes.ep
    part.work.routed += 4 * others * BYTES * own * sizes.expert_hidden


def _mamba(part: _Part) -> None:
    sizes, batch = part.sizes, part.batch
    inner = sizes.mamba_inner / sizes.tp
    state = 2 * sizes.mamba_groups * sizes.mamba_state / sizes.tp
    part.product(2 * inner + state + sizes.mamba_heads / sizes.tp, sizes.hidden)
    part.product(sizes.hidden, inner)
    part.work.attention += 3 * 2 * batch.tokens * inner * (2 * sizes.mamba_state + SCAN_CHUNK)
    part.elementwise(5 * sizes.hidden / sizes.tp + 14 * inner + 6 * state)
    part.exchange()


_COUNT = {ATTENTION: _attention, LATENT: _latent, MLP: _mlp, EXPERTS: _experts, MAMBA: _mamba}


def part_work(sizes: Sizes, batch: Batch, kind: str) -> Work:
    """Return the work of one part of a layer."""
    part = _Part(sizes, batch)
    _COUNT[kind](part)
    part.work.captured = CAPTURED[kind] * KERNELS[kind]
    part.work.kernels = KERNELS[kind]
    if kind == EXPERTS:
        part.work.kernels += KERNELS_OF_EXPERT * sizes.experts / sizes.ep
    return part.work


def model_work(sizes: Sizes, batch: Batch) -> Work:
    """Return the work of a microbatch on an average pipeline rank."""
    found = Work()
    every = [sizes.parts, *sizes.predictions]
    for kind in _COUNT:
        times = sum(part.count(kind) for part in every)
        if times:
            found.add(part_work(sizes, batch, kind), times / sizes.pp)
    outputs = 1 + len(sizes.predictions)
    columns = sizes.vocab / sizes.tp
    head = Work(
        head=batch.passes * 2 * batch.tokens * sizes.hidden * columns,
        moved=LOGIT_BYTES * batch.tokens * columns,
        weights=2 * sizes.hidden * columns / outputs,
    )
    found.add(head, outputs / sizes.pp)
    return found
