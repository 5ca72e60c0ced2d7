"""The `checkpoint` section: contents, location and interval of checkpoints, and the source that a run starts from."""

from dataclasses import dataclass, field
from typing import Any, Literal

from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.rules import reject_violations
from mb_schema.sections import StrictFields
from mb_schema.value_types import reject_wrong_types


@dataclass(kw_only=True)
class CheckpointConfig(StrictFields):
    """Configuration of saving and loading checkpoints; names and defaults are those of Megatron trainers.

    The constructor reads no files and checks no values: `mb_checkpoint.rules.RULES` lists invalid values and
    unsupported options.
    """

    # --- saving
    save: str | None = None
    """Folder that receives the checkpoints; None disables saving."""
    save_interval: int | Literal["auto"] | None = None
    """Number of steps between persistent checkpoints; None saves only at the end. "auto": the interval that loses the
    least time, from the predicted step, the size of a checkpoint and the time between failures."""
    most_recent_k: int | None = -1
    """Number of newest `iter_*` folders to keep; -1 keeps all. The folder that a tracker names is never deleted."""
    save_retain_interval: int | None = None
    """Interval in steps of the checkpoints to keep in addition to the newest ones."""
    best_metric: str | None = None
    """Name of a validation metric, such as "lm loss". The best checkpoint by it is never deleted, and the link `best`
    next to the checkpoints points to it. None: checkpoints are kept by their steps only."""
    best_metric_mode: Literal["min", "max"] = "min"
    """"min" if a lower value of `best_metric` is better, "max" if a higher one is."""
    save_optim: bool = True
    """Store the optimizer state. The scheduler is stored in any case."""
    save_rng: bool = True
    """Store the states of the random number generators of every rank."""
    save_tokenizer_assets: bool = True
    """Store the files of the tokenizer in each checkpoint, if the manager has a writer for them."""
    ckpt_format: Literal["torch", "torch_dist", "torch_dcp", "fsdp_dtensor"] = "torch_dist"
    """Layout of the tensor files on disk."""
    storage_writers_per_rank: int = 1
    """Number of writer threads, and data files, of each rank that writes."""
    fully_parallel_save: bool = True
    """Distribute the writing over the data-parallel ranks; false leaves it to the first of them."""
    ckpt_fully_parallel_save_process_group: Literal["dp", "ep_dp"] = "dp"
    """Ranks that share the writing: data-parallel (with context-parallel), or expert data-parallel."""
    ckpt_assume_constant_structure: bool = False
    """Let nvidia-resiliency-ext (`async_strategy` "nvrx") reuse the plan of a save while no rank has other tensors. The
    writer of this package always does: the comparison takes one number of each rank, and without it a save would lack
    what did not exist in the first one, such as the state of Adam before its first update."""
    dist_ckpt_optim_fully_reshardable: bool = False
    """Store the distributed optimizer in a form that any parallel layout can read, not only another data-parallel
    size."""
    distrib_optim_fully_reshardable_mem_efficient: bool = False
    """Gather that state through Gloo to one writer: less memory, slower."""
    dist_ckpt_save_pre_mcore_014: bool = False
    """Write the layout of Megatron Core before 0.14."""
    verify_integrity: bool = True
    """Compare the contents of all files with their checksums on load; false compares sizes. Checksums are always
    stored."""
    checksum: Checksum = "xxh3_128"
    """Algorithm of these checksums: "xxh3_128" at about the speed of memory, or "sha256"."""
    on_save_error: Literal["continue", "raise"] = "continue"
    """Effect of a failed save: "continue" resumes training and saves again at the next interval; "raise" ends the
    run."""

    storage: str | None = None
    """URL, such as `s3://bucket/run`, or folder that receives a copy of each persistent checkpoint. A run whose `save`
    lacks the newest one fetches it from there. None keeps checkpoints in `save` only."""
    storage_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the fsspec file system of `storage`, such as `endpoint_url`; credentials come from the
    environment."""

    # --- saving in the background
    async_save: bool = False
    """Write checkpoints in the background while training continues."""
    async_strategy: str = "nvrx"
    """Background writer: "nvrx" (nvidia-resiliency-ext) or "mcore" (Megatron Core)."""
    use_persistent_ckpt_worker: bool = True
    """Keep one background process for all saves instead of starting one for each."""
    async_write_results_mp_mode: str = "spawn"
    """Start method of the background process. "spawn", "forkserver": a fresh interpreter, ready some seconds after the
    start of the run. "fork": a copy of this process, ready at once, which keeps a copy of all memory that training
    changes."""
    async_hang_seconds: float = 600.0
    """A background process that writes nothing for this many seconds is killed, and its save fails."""
    async_ckpt_cpu_priority: int = 10
    """Nice value of the background process, 0 to 19."""
    async_ckpt_io_priority: int | None = 3
    """Input/output scheduling class of the background process, 0 to 3 (3: only when the disk is idle)."""
    async_ckpt_use_cpu_shm: bool = False
    """Pass the tensors in shared host memory."""
    dist_ckpt_workers: int = 1
    """Number of writer threads of background saves in the fsdp_dtensor layout."""

    # --- non-persistent checkpoints
    non_persistent_save_interval: int | None = None
    """Number of steps between non-persistent checkpoints."""
    non_persistent_ckpt_type: Literal["global", "local", "in_memory"] | None = None
    """Location of non-persistent checkpoints: "global" on the shared file system, "local" on each node."""
    non_persistent_global_ckpt_dir: str | None = None
    """Folder of global non-persistent checkpoints; None means `<save>/non_persistent`."""
    non_persistent_local_ckpt_dir: str | None = None
    """Folder of local non-persistent checkpoints, on each node."""
    non_persistent_local_ckpt_algo: Literal["fully_parallel", "atomic"] = "fully_parallel"
    """Distribution of the state of a local non-persistent checkpoint over the ranks."""
    replication: bool = False
    """Keep copies of local non-persistent checkpoints on other nodes."""
    replication_jump: int | None = None
    """Distance in ranks between two holders of the same copy."""
    replication_factor: int = 2
    """Number of nodes that hold each copy."""

    # --- loading
    load: str | None = None
    """Folder to resume from: one with trackers and `iter_*` folders, or one `iter_*` folder."""
    pretrained_checkpoint: str | None = None
    """Folder of the initial weights, used if there is no checkpoint to resume from; the same two forms as `load`."""
    ckpt_step: int | None = None
    """Step to load instead of the newest."""
    finetune: bool = False
    """Load only the weights and start at step 0."""
    load_optim: bool = True
    """Restore optimizer and scheduler, if stored."""
    load_rng: bool = True
    """Restore the random number generators, if stored and if the parallel layout is the same."""
    load_main_params_from_ckpt: bool = False
    """Without optimizer state, initialize the float32 main parameters from the stored values instead of the rounded
    weights."""
    exit_on_missing_checkpoint: bool = False
    """Raise instead of starting from random weights if `load` or `pretrained_checkpoint` holds no checkpoint."""
    dist_ckpt_strictness: Literal[
        "assume_ok_unexpected",
        "log_unexpected",
        "log_all",
        "raise_unexpected",
        "raise_all",
        "return_unexpected",
        "return_all",
        "ignore_all",
    ] = "assume_ok_unexpected"
    """Treatment by Megatron Core of entries that are only in the checkpoint or only in the run. The shapes of the model
    are compared beforehand in any case."""
    ckpt_load_validate_sharding_integrity: bool = True
    """Check on load that the ranks together request each piece exactly once."""
    fully_parallel_load: bool | None = None
    """Distribute the reading over the data-parallel ranks, which then exchange the tensors; false lets each of them
    read all. None: true, except in the fsdp_dtensor layout, where each rank has tensors of its own."""
    ckpt_fully_parallel_load_exchange_algo: Literal["broadcast", "gather_rounds", "gather_object"] = (
        "broadcast"
    )
    """Algorithm of that exchange."""
    ckpt_fully_parallel_load_process_group: Literal["dp", "ep_dp"] = "dp"
    """Ranks that share the reading."""
    strict_fsdp_dtensor_load: bool = False
    """Reject partial loads in the fsdp_dtensor layout."""
    stream_ckpt_dequant: bool = True
    """Dequantize one tensor at a time while loading FP8 and FP4 weights, instead of all of them in advance."""
    auto_detect_ckpt_format: bool = False
    """Detect the layout of the checkpoint. Always done, whatever the value."""
    use_checkpoint_args: bool = False
    """Take the architecture of the model from the checkpoint, where the user has set nothing."""
    use_mp_args_from_checkpoint_args: bool = False
    """Take the parallel sizes from the checkpoint as well."""
    use_tokenizer_model_from_checkpoint_args: bool = True
    """Take the path of the tokenizer from the checkpoint, if its settings are used at all."""

    # --- other formats and managers
    custom_manager_class: str | None = None
    """Dotted name of the class that replaces the default manager."""
    also_save_hf_checkpoint: bool = False
    """Also export the weights in Hugging Face format, to `iter_*/hf`, in another process while training continues."""
    hf_source_path: str | None = None
    """Hugging Face folder whose other small files, such as generation_config.json, are copied to that export."""
    hf_trust_remote_code: bool = False
    """Allow code that comes with the template."""
    hf_distributed_save: bool = False
    """Let several ranks write that export, each a part of its files, in other processes while training continues."""
    hf_save_every_n_ranks: int = 1
    """Distance between the ranks that write it: 1 is every rank, the number of ranks on a node one rank of each."""
    ckpt_convert_format: Literal["torch", "torch_dist"] | None = None
    """Layout to convert to."""
    ckpt_convert_save: str | None = None
    """Folder of the converted checkpoint."""
    ckpt_convert_update_legacy_dist_opt_format: bool = False
    """Convert the distributed-optimizer layout of 2024."""

    trust: bool = field(
        default=False,
        metadata={
            "consent": "the authors of checkpoints could execute any code. Remove the line, and pass --trust with the "
            "folder of the checkpoints, or checkpoint.trust=true on the command line."
        },
    )
    """Unpickle checkpoints without restrictions: their authors can then execute any code in this process. Needed for
    legacy checkpoints, and for data loaders whose position is an object of a custom class. A file cannot set it."""

    # --- dumps for debugging
    save_params_interval: int | None = None
    """Steps between dumps of the parameters."""
    save_activations_interval: int | None = None
    """Steps between dumps of the activations."""
    save_tokens_per_expert_interval: int | None = None
    """Steps between dumps of the load of the experts."""
    save_wgrads_interval: int | None = None
    """Steps between dumps of the weight gradients."""
    save_dgrads_interval: int | None = None
    """Steps between dumps of the data gradients."""

    def finalize(self) -> None:
        """Check the section on its own. Changes nothing.

        Raises:
            CheckpointConfigError: Values are inconsistent or unsupported (V064 to V069 and others); the message has a
                line for each.
            FieldTypeError: Values have a wrong type.
        """
        reject_wrong_types(self, path="checkpoint")
        reject_violations(self)
