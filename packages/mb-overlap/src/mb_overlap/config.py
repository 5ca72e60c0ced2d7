"""Configuration section `comm_overlap`: the communication to overlap, and the method for each GEMM of a layer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from mb_overlap.setup import OverlapChange, apply_plan, make_plan
from mb_overlap.software_versions import detect_versions
from mb_overlap.target_sections import ModelSection, TargetSections
from mb_overlap.transformer_engine.arguments import to_transformer_engine
from mb_schema.sections import StrictFields
from mb_schema.value_types import reject_wrong_types


@dataclass(kw_only=True)
class TPOverlapCfg(StrictFields):
    """Overlap of one GEMM with tensor-parallel communication. Base class of the three methods."""


@dataclass(kw_only=True)
class PipelineOverlapCfg(TPOverlapCfg):
    """Pipelined overlap: the GEMM is split into chunks, and each chunk's communication runs during the next GEMM."""

    num_sm: int
    """Streaming multiprocessors given to the communication kernel."""
    cga_size: int
    """Thread blocks in a cluster of the communication kernel."""
    num_splits: int
    """Number of chunks of the GEMM."""
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
    """Ring-exchange overlap: chunks move from peer to peer, and each hop runs during the GEMM of another chunk."""

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
    """Bulk overlap: the complete communication runs concurrently with a GEMM that does not depend on it."""

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
    """Overlap settings of a transformer layer, one entry per GEMM; None leaves the GEMM to Transformer Engine."""

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
    """Communication to overlap with computation.

    None leaves a choice to the rules, which depend on the parallel layout. Any other value, including False, takes
    precedence. `setup` never writes to this section, so that one section can configure several models.
    """

    tp_comm_overlap: bool
    """Hide tensor-parallel communication under GEMMs (Transformer Engine's user buffers)."""
    tp_comm_overlap_cfg: TransformerLayerTPOverlapCfg | None = None
    """Method of each GEMM of a layer; None selects Transformer Engine's defaults."""
    tp_comm_bootstrap_backend: str | None = None
    """Backend that initializes the user buffers: "nccl", "gloo" or "mpi"; None keeps the model's value."""
    overlap_p2p_comm: bool | None = None
    """Hide sends and receives between pipeline stages; needs the interleaved schedule."""
    batch_p2p_comm: bool | None = None
    """Group the sends and receives between pipeline stages into one call."""
    overlap_grad_reduce: bool | None = None
    """Reduce gradients over the data-parallel group during the backward pass."""
    overlap_param_gather: bool | None = None
    """All-gather the distributed optimizer's parameters during the forward pass."""
    overlap_param_gather_with_optimizer_step: bool | None = None
    """Start the parameter all-gather during the optimizer step; never set by the rules, because checkpoints would miss
    parameters that are still being gathered."""
    align_param_gather: bool | None = None
    """Launch the parameter all-gathers of all pipeline stages at the same time."""
    bucket_size: int | None = None
    """Number of parameters in one bucket of the data-parallel reduction."""
    defer_embedding_wgrad_compute: bool | None = None
    """Compute the weight gradient of the embedding during the pipeline flush."""
    wgrad_deferral_limit: int | None = None
    """Number of microbatches whose embedding gradient may be deferred; 0 means all."""
    data_parallel_size: int | None = None
    """Number of data-parallel ranks; required by `setup` with the distributed optimizer."""
    overlap_moe_expert_parallel_comm: bool | None = None
    """Hide the expert-parallel all-to-all under computation; None keeps the model's value."""
    delay_wgrad_compute: bool | None = None
    """Delay weight gradients to hide more of the all-to-all; None keeps the model's value."""

    def finalize(self) -> None:
        """Check the types of the values. Changes nothing; `setup` and `find_conflicts` check them with a layout.

        Raises:
            FieldTypeError: values have a wrong type.
        """
        reject_wrong_types(self, path="comm_overlap")

    def requested_fields(self) -> dict[str, object]:
        """Return the fields that are set, by name, with the GEMM settings in Transformer Engine's format."""
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
    ) -> list[OverlapChange]:
        """Write the overlap that this layout supports to the three sections, and return the changes.

        The sections are any objects with the relevant fields: plain dataclasses, Megatron Core's classes, mappings,
        or Megatron-LM's argparse namespace passed three times. Fields that a section does not have are skipped.
        Idempotent: a second call changes nothing.

        Args:
            model_config: read for its parallel sizes; receives the tensor- and pipeline-parallel settings.
            optimizer_config: receives the data-parallel settings.
            ddp_config: receives the data-parallel settings. They are written only if this section or
                `optimizer_config` has `use_distributed_optimizer`.
            transformer_engine: whether Transformer Engine is installed; None looks for the package without
                importing it.
            facts: `transformer_engine`, `transformer_engine_version` and `torch_version` of the machines that run the
                model; missing entries are detected on this machine.
            keep: paths such as `ddp.overlap_grad_reduce` that the user set manually on those sections; their
                current values count as requested.
            strict: raise instead of returning a warning if a requested option is not available.

        Returns:
            One record per changed field, followed by one record of severity "warning" per requested option that
            this layout or these sections do not support.

        Raises:
            DataParallelSizeError: the distributed optimizer is on and `data_parallel_size` is None.
            OverlapConflictError: requested options contradict each other, break the pipeline schedule, or lack a
                requirement of expert-parallel overlap, delayed or deferred weight gradients. Nothing is written.
            OverlapRejectedError: `strict`, and a requested option is not available. Nothing is written.
            AttributeError: the model section lacks a field of `ModelSection`.
            FieldTypeError: values of this section have a wrong type.
        """
        reject_wrong_types(self, path="comm_overlap")
        sections = TargetSections(model=model_config, optimizer=optimizer_config, ddp=ddp_config)
        versions = detect_versions(transformer_engine, facts or {})
        plan = make_plan(self.requested_fields(), sections, versions=versions, keep=keep)
        return apply_plan(plan, sections, strict=strict)
