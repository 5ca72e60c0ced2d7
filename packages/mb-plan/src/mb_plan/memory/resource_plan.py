"""Resource plan of a run, computed from its sections."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from mb_plan.memory.adapter_counts import adapter_count, image_adapter_count
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.memory.model_chunks import ModelChunk, split_into_chunks
from mb_plan.memory.overhead import Overhead, estimate_overhead
from mb_plan.memory.parameter_counts import ParameterCount, Parts, active, add_parts, chunk_parts, total
from mb_plan.memory.parameter_storage import ParameterStorage, parameter_storage, sharded_bytes
from mb_plan.memory.pipeline_schedule import PipelineSchedule, batch_sizes, count_microbatches
from mb_plan.memory.stage_activations import stage_activations
from mb_plan.memory.vision_encoder import ModuleLayout, module_layout, vision_parts
from mb_plan.shape.adapters import Adapters, read_adapters
from mb_plan.shape.fields import MAX_STAGES, read_field, read_graphs, reject_more_than
from mb_plan.shape.flops import flops_per_token
from mb_plan.shape.model_shape import ModelShape, read_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Peak device memory of one rank, in bytes; None: not counted."""

    weights: int
    gradients: int
    optimizer: int | None
    """Master weights and moments."""
    activations: int | None

    @property
    def total(self) -> int | None:
        """Sum of all parts; None if a part is not counted."""
        if self.optimizer is None or self.activations is None:
            return None
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Resources of one pipeline stage."""

    layers: int
    """Number of layers, including those of an encoder."""
    parameters: int
    """Parameters over the ranks of the stage, each counted once, including copies of the embedding."""
    rank_parameters: int
    """Parameters on one rank of the stage."""
    rank_bytes: RankBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """Computed resources of a run. Nothing is built or measured."""

    parameters: int
    """Parameters of the complete model, each counted once, without adapters."""
    adapter_parameters: int | None
    """Parameters of the adapters, the only ones that are trained; None: all are trained."""
    active_parameters: int
    """Parameters that one token uses: without the experts that it is not routed to."""
    embedding_parameters: int
    """Parameters of word and position embeddings and the output layer."""
    parts: Mapping[str, int]
    """Part of the model, such as "attention" or "experts", to its parameters."""
    stages: tuple[StagePlan, ...]
    """By pipeline rank."""
    shape: ModelShape
    """Sizes of the model, and its parallel sizes."""
    world_size: int
    """Number of processes."""
    data_parallel_size: int | None
    """Number of model replicas; None: the world size does not divide, or is not known."""
    num_microbatches: int | None
    """Microbatches per step and replica; None: the batch does not divide, or is not known."""
    tokens_per_step: int | None
    bubble_fraction: float | None
    """Fraction of a step in which pipeline stages are idle, 0 to 1, for stages of equal speed."""
    checkpoint_bytes: int | None
    """Bytes of one checkpoint on disk; None: not counted."""
    host_bytes: int
    """Bytes of the optimizer state of one rank on the host."""
    overhead: Overhead
    """Estimated memory of the fullest rank that is not that of tensors."""
    flops_per_token: Mapping[str, float] | None
    """Floating-point operations of a token by part, forward and backward; None: the sequence length is not known."""
    notes: tuple[str, ...]
    """Omissions and assumptions."""

    @property
    def flops(self) -> float | None:
        """Floating-point operations of a token."""
        return None if self.flops_per_token is None else sum(self.flops_per_token.values())

    @property
    def flops_per_step(self) -> float | None:
        """Floating-point operations of a step, over all processes."""
        if self.flops is None or self.tokens_per_step is None:
            return None
        return self.flops * self.tokens_per_step

    @property
    def peak_stage(self) -> int:
        """Index of the stage with the highest memory per rank, or with the most parameters if bytes are not counted."""
        return max(range(len(self.stages)), key=lambda number: _weight(self.stages[number]))

    @property
    def peak(self) -> StagePlan:
        """Stage with the highest memory per rank."""
        return self.stages[self.peak_stage]

    @property
    def needed_bytes(self) -> int | None:
        """Memory of the fullest rank, with overhead; None if a part is not counted."""
        total = self.peak.rank_bytes.total
        return None if total is None else total + self.overhead.total

    def fits(self, gpu: str | None) -> bool | None:
        """Return whether the fullest rank fits a GPU, by its short name; None if one of the two is not known."""
        memory, need = GPU_MEMORY.get(gpu or ""), self.needed_bytes
        return None if memory is None or need is None else need <= memory.size

    def _repr_html_(self) -> str:
        """Return a table of the plan for a notebook, without colours. Bytes are those of the fullest rank."""
        memory, gib = self.peak.rank_bytes, 2**30
        sizes = {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
            "overhead": self.overhead.total,
            "memory per rank": self.needed_bytes,
            "checkpoint": self.checkpoint_bytes,
        }
        rows = {
            "parameters": f"{self.parameters:,}",
            **({} if self.adapter_parameters is None else {"trained": f"{self.adapter_parameters:,}"}),
            "parameters per token": f"{self.active_parameters:,}",
            **{name: f"{size / gib:.2f} GiB" for name, size in sizes.items() if size is not None},
            "processes": f"{self.world_size:,}",
            "model replicas": "?" if self.data_parallel_size is None else f"{self.data_parallel_size:,}",
            "microbatches": "?" if self.num_microbatches is None else f"{self.num_microbatches:,}",
            "pipeline bubble": "?" if self.bubble_fraction is None else f"{self.bubble_fraction:.1%}",
        }
        cells = "".join(
            f'<tr><td style="text-align:left">{name}</td><td style="text-align:right">{text}</td></tr>'
            for name, text in rows.items()
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<table><tbody>{cells}</tbody></table>" + (f"<ul>{notes}</ul>" if notes else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON. Bytes are those of the peak stage."""
        memory = self.peak.rank_bytes
        return {
            "parameters": {
                "total": self.parameters,
                "adapters": self.adapter_parameters,
                "active": self.active_parameters,
                "embedding": self.embedding_parameters,
                "per_stage": [stage.parameters for stage in self.stages],
                "per_rank_max": max(stage.rank_parameters for stage in self.stages),
            },
            "bytes_per_rank": {
                "weights": memory.weights,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "total": memory.total,
            },
            "flops_per_token": None
            if self.flops_per_token is None
            else {"total": self.flops, **self.flops_per_token},
            "flops_per_step": self.flops_per_step,
            "overhead_bytes": {
                "cuda": self.overhead.cuda,
                "nccl": self.overhead.nccl,
                "fragmentation": self.overhead.fragmentation,
                "graphs": self.overhead.graphs,
            },
            "num_microbatches": self.num_microbatches,
            "data_parallel_size": self.data_parallel_size,
            "bubble_fraction": self.bubble_fraction,
            "checkpoint_bytes": self.checkpoint_bytes,
        }


def _weight(stage: StagePlan) -> tuple[int, int]:
    memory = stage.rank_bytes
    return memory.total or 0, memory.weights + memory.gradients


def make_plan(
    sections: Mapping[str, object], *, world_size: int | None = None, vocab_size: int | None = None
) -> ResourcePlan:
    """Compute the resource plan of a run from its sections, which are not modified.

    Args:
        sections: "model" and optionally "train", "optimizer", "ddp", "dataset", "checkpoint" and "peft": objects or
            mappings with Megatron Core's field names. The precision must be resolved, as a recipe such as bf16_mixed
            is not read. With "peft" only adapters have gradients and a state in the optimizer.
        world_size: Number of processes; None: the smallest number that holds the model.
        vocab_size: Rows of the embedding if the model section does not set them.

    Raises:
        PlanError: If the sizes of the model are missing or unsupported. Other missing values result in None.
    """
    model, train = sections["model"], sections.get("train")
    shape = read_shape(model, vocab_size=vocab_size)
    world = shape.smallest_world if world_size is None else world_size
    chunks = split_into_chunks(model, shape)
    store = parameter_storage(
        model,
        optimizer=sections.get("optimizer"),
        ddp=sections.get("ddp"),
        checkpoint=sections.get("checkpoint"),
    )
    layout = module_layout(shape)
    data_parallel = _quotient(world, shape.model_ranks) if layout is None else 1
    batches = batch_sizes(train)
    global_batch = batches[-1] if batches else None
    microbatches = count_microbatches(global_batch, read_field(train, "micro_batch_size"), data_parallel)
    adapters = read_adapters(sections.get("peft"), model)
    counts = _stage_parameters(chunks, shape, layout, adapters)
    schedule = _pipeline(model, chunks, shape, microbatches)
    length = _seq_length(sections)
    held = stage_activations(
        sections,
        chunks,
        shape,
        number_bytes=store.weights,
        pipeline=schedule,
        length=length,
        stages=len(counts),
    )
    over = _shard_ranks(store, shape, world=world, data_parallel=data_parallel)
    once = add_parts(chunk_parts(_undivided(chunks, shape), shape), vision_parts(shape))
    parts = {name: count.all_ranks for name, count in once.items()}
    number = sum(parts.values())
    pipeline = schedule if len(counts) == shape.pp else None
    stages = tuple(
        StagePlan(
            layers=stage.layers,
            parameters=stage.model.all_ranks,
            rank_parameters=stage.model.rank,
            rank_bytes=_rank_bytes(stage, store, over, activations),
        )
        for stage, activations in zip(counts, held, strict=True)
    )
    trained = number if adapters is None else sum(stage.trained.all_ranks for stage in counts)
    return ResourcePlan(
        parameters=number,
        adapter_parameters=None if adapters is None else trained,
        active_parameters=active(once, shape),
        embedding_parameters=sum(parts.get(name, 0) for name in ("embedding", "positions", "output")),
        parts=parts,
        stages=stages,
        shape=shape,
        overhead=estimate_overhead(
            sections,
            data_parallel=data_parallel,
            activations=max(stage.rank_bytes.activations or 0 for stage in stages),
            graph_gradients=_graph_gradients(model, counts, store),
        ),
        world_size=world,
        data_parallel_size=data_parallel,
        num_microbatches=microbatches,
        tokens_per_step=global_batch * length if global_batch and length else None,
        bubble_fraction=None if pipeline is None else pipeline.bubble,
        checkpoint_bytes=None if store.saved is None else trained * store.saved,
        host_bytes=_host_bytes(counts, store, over),
        flops_per_token=flops_per_token(shape, seq_length=length, adapters=adapters) if length else None,
        notes=(*store.notes, *_notes(sections, shape, layout, batches, world=world)),
    )


def _quotient(number: int, parts: int) -> int | None:
    return number // parts if number >= parts and number % parts == 0 else None


def _seq_length(sections: Mapping[str, object]) -> int | None:
    dataset = sections.get("dataset")
    for section in (dataset, sections["model"]):
        for name in ("seq_length", "sequence_length"):
            length = read_field(section, name)
            if isinstance(length, int) and length > 0:
                return length
    return None


LINEAR = ("attention", "mlp", "experts", "shared_experts", "mamba")
"""Parts whose weights are those of linear layers that may be in FP8; their norms and biases are few. Not among them:
the embedding, the output layer and an image encoder."""

_GRAPH_PARTS = {"attn": ("attention",), "mlp": ("mlp",), "mamba": ("mamba",)}
"""Module of `cuda_graph_modules` to its parts; "moe" has weights whose gradients are computed outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageParameters:
    """Layers of a pipeline stage, and their parameters."""

    layers: int
    """Number of layers, including those of an encoder."""
    parts: Parts
    adapters: ParameterCount | None
    """The only parameters that are trained; None: all are."""

    def __add__(self, other: _StageParameters) -> _StageParameters:
        adapters = None
        if self.adapters is not None and other.adapters is not None:
            adapters = self.adapters + other.adapters
        return _StageParameters(
            layers=self.layers + other.layers,
            parts=add_parts(self.parts, other.parts),
            adapters=adapters,
        )

    @property
    def model(self) -> ParameterCount:
        """All parameters but those of adapters."""
        return total(self.parts)

    @property
    def trained(self) -> ParameterCount:
        """Parameters that have gradients and a state in the optimizer."""
        return self.model if self.adapters is None else self.adapters

    def of(self, names: Collection[str]) -> ParameterCount:
        """Return the parameters of some parts."""
        return total({name: count for name, count in self.parts.items() if name in names})


def _stage_parameters(
    chunks: Sequence[ModelChunk], shape: ModelShape, layout: ModuleLayout | None, adapters: Adapters | None
) -> list[_StageParameters]:
    """Return the parameters of each stage. A vision encoder is a stage of its own, the first, or in the first one."""
    stages = []
    for stage in range(shape.pp):
        here = [chunk for chunk in chunks if chunk.stage == stage]
        added = [] if adapters is None else [adapter_count(chunk, shape, adapters) for chunk in here]
        stages.append(
            _StageParameters(
                layers=shape.encoder_layers + sum(len(chunk.layers) for chunk in here),
                parts=add_parts(*(chunk_parts(chunk, shape) for chunk in here)),
                adapters=None if adapters is None else sum(added, ParameterCount()),
            )
        )
    if shape.vision is None:
        return stages
    images = _StageParameters(
        layers=shape.vision.layers,
        parts=vision_parts(shape),
        adapters=None if adapters is None else image_adapter_count(shape, adapters),
    )
    if layout is not None and layout.first:
        return [images, *stages]
    return [stages[0] + images, *stages[1:]]


def _graph_gradients(model: object, stages: Sequence[_StageParameters], store: ParameterStorage) -> int:
    """Return the bytes of the gradients of weights that graphs of modules write, on the rank with the most.

    Each graph has its outputs to itself, also between its replays. With `gradient_accumulation_fusion` they are added
    to the buffer of gradients in the product's kernel.
    """
    graphs = read_graphs(model)
    if not graphs or graphs == "step" or read_field(model, "gradient_accumulation_fusion", False):
        return 0
    names = {name for module in graphs for name in _GRAPH_PARTS.get(module, ())}
    return max(stage.of(names).rank for stage in stages) * store.weights


def _undivided(chunks: tuple[ModelChunk, ...], shape: ModelShape) -> ModelChunk:
    """Return the complete model as one chunk, so that embeddings are counted once."""
    return ModelChunk(
        stage=0,
        virtual=0,
        layers=tuple(range(shape.num_layers)),
        embedding=True,
        mtp=sum(chunk.mtp for chunk in chunks),
        final_norm=True,
        output=True,
    )


def _pipeline(
    model: object, chunks: tuple[ModelChunk, ...], shape: ModelShape, microbatches: int | None
) -> PipelineSchedule | None:
    """Return the pipeline schedule of a model; None if the number of microbatches is not known.

    Raises:
        PlanError: More consecutive microbatches are requested than can be replayed.
    """
    if microbatches is None:
        return None
    group = read_field(model, "microbatch_group_size_per_vp_stage") or shape.pp
    in_a_row = min(group, microbatches)
    reject_more_than(
        "microbatch_group_size_per_vp_stage", in_a_row, "consecutive microbatches", most=MAX_STAGES
    )
    return PipelineSchedule(
        stages=shape.pp,
        chunks=len(chunks) // shape.pp,
        microbatches=microbatches,
        group=group,
        ahead=1 if read_field(model, "overlap_moe_expert_parallel_comm", False) else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardRanks:
    """Number of ranks that shard each kind of state, as (dense, experts); None: not known."""

    weights: tuple[int, int] | None
    gradients: tuple[int, int] | None
    optimizer: tuple[int, int] | None


def _shard_ranks(
    store: ParameterStorage, shape: ModelShape, *, world: int, data_parallel: int | None
) -> _ShardRanks:
    """Return over how many ranks weights, gradients and optimizer state are sharded."""
    replicas = None if data_parallel is None else data_parallel * shape.cp
    experts = _quotient(world, shape.expert_ranks)

    def ranks(sharded: bool, instances: int) -> tuple[int, int] | None:
        if not sharded:
            return 1, 1
        if replicas is None or (experts is None and shape.experts):
            return None
        dense, expert = _quotient(replicas, instances), _quotient(experts or replicas, instances)
        return None if dense is None or expert is None else (dense, expert)

    return _ShardRanks(
        weights=ranks(store.weights_sharded, store.instances),
        gradients=ranks(store.gradients_sharded, store.instances),
        optimizer=ranks(store.optimizer_sharded, store.optimizer_instances),
    )


def _rank_bytes(
    stage: _StageParameters, store: ParameterStorage, over: _ShardRanks, activations: int | None
) -> RankBytes:
    """Return the bytes of a rank. With adapters, only these have gradients and a state in the optimizer."""

    def size(count: ParameterCount, each: float, ranks: tuple[int, int] | None) -> int:
        dense, expert = ranks or (1, 1)
        return sharded_bytes(count, each, dense_over=dense, expert_over=expert)

    weights = stage.model + (stage.adapters or ParameterCount())
    quantized = size(stage.of(LINEAR), store.linear_weights - store.weights, over.weights)
    counted = store.optimizer is not None and over.optimizer is not None
    return RankBytes(
        weights=size(weights, store.weights, over.weights) + quantized,
        gradients=size(stage.trained, store.gradients, over.gradients),
        optimizer=size(stage.trained, store.optimizer or 0, over.optimizer) if counted else None,
        activations=activations,
    )


def _host_bytes(stages: Sequence[_StageParameters], store: ParameterStorage, over: _ShardRanks) -> int:
    if over.optimizer is None:
        return 0
    dense, expert = over.optimizer
    return max(
        sharded_bytes(stage.trained, store.host, dense_over=dense, expert_over=expert) for stage in stages
    )


def _notes(
    sections: Mapping[str, object],
    shape: ModelShape,
    layout: ModuleLayout | None,
    batches: Sequence[int],
    *,
    world: int,
) -> list[str]:
    """Return what is not counted, or is counted under an assumption, as sentences for the user."""
    notes = [f"planned for the last batch size, {batches[-1]}"] if len(batches) > 1 else []
    if layout is not None:
        problem = layout.problem(world)
        notes += [] if problem is None else [problem]
        if layout.first:
            notes.append(
                "stage 0 is the encoder, 1 the language model; idle time between the two is not counted"
            )
    elif world % shape.model_ranks:
        notes.append(f"{world} processes are not a multiple of tp x pp x cp = {shape.model_ranks}")
    if read_field(sections["model"], "transformer_impl") == "local":
        notes.append("activations: local layers without fused kernels save more than is counted")
    if shape.encoder_layers:
        notes.append("tokens are those of the encoder")
    if shape.pattern is not None:
        notes.append("activations of Mamba and gated-delta layers are those that fused kernels save")
    if shape.vision is not None:
        notes.append("activations are counted for one image in each sequence")
    if sections.get("peft") is not None:
        notes.append("activations are counted as in training of all weights, without those of adapters")
    if not _seq_length(sections):
        notes.append("the sequence length is not known, so that floating-point operations are not counted")
    return notes
