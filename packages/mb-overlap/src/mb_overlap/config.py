"""The section `comm_overlap`: what a run wishes to overlap, and how each GEMM of a layer does it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from mb_overlap.setup import Change, apply_plan, make_plan
from mb_overlap.software_versions import detect_versions
from mb_overlap.strict_fields import StrictFields
from mb_overlap.target_sections import ModelSection, TargetSections
from mb_overlap.transformer_engine import to_transformer_engine
from mb_overlap.value_types import reject_wrong_types


@dataclass(kw_only=True)
class TPOverlapCfg(StrictFields):
    """How one GEMM of a layer hides its tensor-parallel communication. Base of the three methods."""


@dataclass(kw_only=True)
class PipelineOverlapCfg(TPOverlapCfg):
    """The GEMM is cut into chunks; each chunk's communication runs under the next chunk's GEMM."""

    num_sm: int
    """Streaming multiprocessors given to the communication kernel."""
    cga_size: int
    """Thread blocks in a cluster of the communication kernel."""
    num_splits: int
    """Chunks that the GEMM is cut into."""
    set_sm_margin: bool
    """Keep the GEMM away from the multiprocessors that communicate."""
    fp8_buf: bool = False
    """Communicate in FP8 instead of the GEMM's output type."""
    atomic_gemm: bool = False
    """Use one GEMM kernel that signals each finished chunk, instead of one kernel a chunk."""
    method: str = "pipeline"
    """Name of the method for Transformer Engine."""


@dataclass(kw_only=True)
class RingExchangeOverlapCfg(TPOverlapCfg):
    """Chunks go round the ring of ranks from peer to peer; each hop runs under the GEMM of another chunk."""

    aggregate: bool = False
    """Send two chunks at a time."""
    method: str = "ring_exchange"
    """Name of the method for Transformer Engine."""
    num_sm: int = 1
    """Streaming multiprocessors given to the communication kernel."""
    cga_size: int = 1
    """Thread blocks in a cluster of the communication kernel."""
    set_sm_margin: bool = False
    """Keep the GEMM away from the multiprocessors that communicate."""
    fp8_buf: bool = False
    """Communicate in FP8 instead of the GEMM's output type."""
    atomic_gemm: bool = False
    """Use one GEMM kernel that signals each finished chunk, instead of one kernel a chunk."""


@dataclass(kw_only=True)
class BulkOverlapCfg(TPOverlapCfg):
    """The whole communication runs beside a GEMM that does not depend on it."""

    num_sm: int
    """Streaming multiprocessors given to the communication kernel."""
    cga_size: int
    """Thread blocks in a cluster of the communication kernel."""
    set_sm_margin: bool
    """Keep the GEMM away from the multiprocessors that communicate."""
    method: str = "bulk"
    """Name of the method for Transformer Engine."""


LayerOverlap = PipelineOverlapCfg | RingExchangeOverlapCfg | BulkOverlapCfg


@dataclass(kw_only=True)
class TransformerLayerTPOverlapCfg(StrictFields):
    """One entry for each GEMM of a transformer layer that can overlap; None leaves that GEMM alone."""

    qkv_dgrad: LayerOverlap | None
    """Input gradient of the QKV projection."""
    qkv_wgrad: LayerOverlap | None
    """Weight gradient of the QKV projection."""
    fc1_dgrad: LayerOverlap | None
    """Input gradient of the first MLP layer."""
    fc1_wgrad: LayerOverlap | None
    """Weight gradient of the first MLP layer."""
    qkv_fprop: LayerOverlap | None
    """Forward of the QKV projection."""
    proj_dgrad: LayerOverlap | None
    """Input gradient of the attention's output projection."""
    fc1_fprop: LayerOverlap | None
    """Forward of the first MLP layer."""
    fc2_dgrad: LayerOverlap | None
    """Input gradient of the second MLP layer."""
    proj_fprop: LayerOverlap | None
    """Forward of the attention's output projection."""
    fc2_fprop: LayerOverlap | None
    """Forward of the second MLP layer."""


@dataclass(kw_only=True)
class CommOverlapConfig(StrictFields):
    """Which communication a run wishes to hide under computation.

    None leaves a choice to the rules, which look at the parallel layout; any other value, an explicit False
    included, wins over them. The section holds wishes only: nothing here writes to it.
    """

    tp_comm_overlap: bool
    """Hide tensor-parallel communication under GEMMs (Transformer Engine's user buffers)."""
    tp_comm_overlap_cfg: TransformerLayerTPOverlapCfg | None = None
    """How each GEMM of a layer overlaps; None lets Transformer Engine choose."""
    tp_comm_bootstrap_backend: str | None = None
    """Backend over which the user buffers are set up: "nccl", "gloo" or "mpi"; None keeps the model's."""
    overlap_p2p_comm: bool | None = None
    """Hide sends and receives between pipeline stages; needs the interleaved schedule."""
    batch_p2p_comm: bool | None = None
    """Group the sends and receives between pipeline stages into one call."""
    overlap_grad_reduce: bool | None = None
    """Reduce gradients over the data-parallel group while the backward pass goes on."""
    overlap_param_gather: bool | None = None
    """Gather the distributed optimizer's parameters while the forward pass goes on."""
    overlap_param_gather_with_optimizer_step: bool | None = None
    """Start gathering while the optimizer steps; the rules never choose it, because checkpoints suffer."""
    align_param_gather: bool | None = None
    """Let all pipeline stages gather parameters at the same moments."""
    bucket_size: int | None = None
    """Parameters in one bucket of the data-parallel reduction (a count, not bytes)."""
    defer_embedding_wgrad_compute: bool | None = None
    """Compute the embedding's weight gradient in the pipeline's flush."""
    wgrad_deferral_limit: int | None = None
    """Microbatches whose embedding gradient may be deferred; 0 is all of them."""
    data_parallel_size: int | None = None
    """Data-parallel ranks; set before `setup`, which needs it with the distributed optimizer."""
    overlap_moe_expert_parallel_comm: bool | None = None
    """Hide the experts' all-to-all under computation; None keeps the model's value."""
    delay_wgrad_compute: bool | None = None
    """Delay weight gradients so that more of the all-to-all hides; None keeps the model's value."""

    def requested_fields(self) -> dict[str, object]:
        """Return the fields that are set, by name; the settings by GEMM as Transformer Engine takes them."""
        requests = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.tp_comm_overlap_cfg is not None:
            requests["tp_comm_overlap_cfg"] = to_transformer_engine(self.tp_comm_overlap_cfg)
        return {name: requested for name, requested in requests.items() if requested is not None}

    def setup(
        self,
        model_config: ModelSection,
        optimizer_config: object,
        ddp_config: object,
        *,
        transformer_engine: bool | None = None,
        facts: Mapping[str, object] | None = None,
        keep: Collection[str] = (),
        strict: bool = False,
    ) -> list[Change]:
        """Write what this layout can overlap to the three sections, and return what changed.

        The sections are any objects with the fields in question: plain dataclasses, Megatron Core's own, mappings,
        or the argparse namespace of Megatron-LM, three times. A field that a section does not have is passed over.
        This section is not written to, so it serves any number of models. A second call changes nothing more.

        Args:
            model_config: read for its parallel sizes; receives the tensor and pipeline settings.
            optimizer_config: receives the data-parallel settings.
            ddp_config: receives the data-parallel settings. They are written only when it or
                `optimizer_config` has `use_distributed_optimizer`.
            transformer_engine: whether Transformer Engine is there; None looks for the package, without
                importing it.
            facts: `transformer_engine`, `transformer_engine_version` and `torch_version` of the machines that the
                model will run on; what is not told is looked up here.
            keep: paths such as `ddp.overlap_grad_reduce` that the user set on those sections by hand; their
                present values count as wishes.
            strict: refuse instead of warning where a wish cannot be granted.

        Returns:
            One record for each field that got another value, then one of severity "warning" for each wish
            that this layout or these sections cannot grant.

        Raises:
            DataParallelSizeError: the distributed optimizer is on and `data_parallel_size` is None.
            OverlapConflictError: two wishes contradict each other, would break the pipeline schedule, or lack what
                the experts' overlap, the delayed or the deferred weight gradients need. Nothing is written.
            OverlapRefusedError: `strict`, and a wish cannot be granted. Nothing is written.
            AttributeError: the model section lacks a field of `ModelSection`.
            FieldTypeError: values of this section have a wrong type.
        """
        reject_wrong_types(self, path="comm_overlap")
        sections = TargetSections(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
        versions = detect_versions(transformer_engine, facts or {})
        plan = make_plan(self.requested_fields(), sections, versions=versions, keep=keep)
        return apply_plan(plan, sections, strict=strict)
