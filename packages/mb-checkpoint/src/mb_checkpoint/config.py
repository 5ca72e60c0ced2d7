"""The `checkpoint` section: what is saved, where, how often, and what a run starts from."""

from dataclasses import dataclass
from typing import Literal

from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.rules import violations
from mb_checkpoint.strict_fields import StrictFields
from mb_checkpoint.value_types import reject_wrong_types


@dataclass(kw_only=True)
class CheckpointConfig(StrictFields):
    """Saving and loading of checkpoints; names and defaults are those of Megatron trainers.

    Constructing one reads nothing and checks nothing: `mb_checkpoint.rules.RULES` says which values cannot
    work, and which ones this version does not carry out.
    """

    # --- saving
    save: str | None = None
    """Folder that receives the checkpoints; None saves nothing."""
    save_interval: int | None = None
    """Steps from one persistent checkpoint to the next; None saves only at the end."""
    most_recent_k: int | None = -1
    """Number of newest `iter_*` folders to keep; -1 keeps all. The one that a tracker names always stays."""
    save_retain_interval: int | None = None
    """Spacing in steps of the checkpoints to keep beside the newest one."""
    save_optim: bool = True
    """Store the optimizer state. The scheduler is stored in any case."""
    save_rng: bool = True
    """Store the states of the random generators of every rank."""
    save_tokenizer_assets: bool = True
    """Store the files of the tokenizer in each checkpoint, when the manager was given a writer for them."""
    ckpt_format: Literal["torch", "torch_dist", "torch_dcp", "fsdp_dtensor"] = "torch_dist"
    """Layout of the tensor files on disk."""
    storage_writers_per_rank: int = 1
    """Writer threads, and therefore data files, of each rank that writes."""
    fully_parallel_save: bool = True
    """Share the writing among the data-parallel ranks, instead of leaving it to the first of them."""
    ckpt_fully_parallel_save_process_group: Literal["dp", "ep_dp"] = "dp"
    """Ranks that share the writing: data-parallel (with context-parallel), or expert data-parallel."""
    ckpt_assume_constant_structure: bool = False
    """Plan the first save only and reuse the plan, because the tensors stay the same."""
    dist_ckpt_optim_fully_reshardable: bool = False
    """Store the distributed optimizer so that any other layout can read it, not only another data-parallel
    size."""
    distrib_optim_fully_reshardable_mem_efficient: bool = False
    """Gather that state through Gloo to one writer: less memory, slower."""
    dist_ckpt_save_pre_mcore_014: bool = False
    """Write the layout of Megatron Core before 0.14."""
    verify_integrity: bool = True
    """Compare the contents of all files with their hashes on load; false compares sizes. Hashes are always stored."""
    on_save_error: Literal["continue", "raise"] = "continue"
    """What a save that fails does to the run: it goes on and saves again at the next chance, or it ends."""

    # --- saving in the background
    async_save: bool = False
    """Write while training goes on."""
    async_strategy: str = "nvrx"
    """Background writer: "nvrx" (nvidia-resiliency-ext) or "mcore" (Megatron Core)."""
    use_persistent_ckpt_worker: bool = True
    """Keep one background process for all saves instead of starting one for each."""
    async_write_results_mp_mode: str = "spawn"
    """Start of the background process. "spawn", "forkserver": a fresh interpreter, ready some seconds after the run
    began. "fork": a copy of this process, ready at once, which keeps a copy of all memory that the training changes."""
    async_hang_seconds: float = 600.0
    """A background process that writes nothing for so long is ended, and its save has failed."""
    async_ckpt_cpu_priority: int = 10
    """Nice value of the background process, 0 to 19."""
    async_ckpt_io_priority: int | None = 3
    """Input/output scheduling class of the background process, 0 to 3 (3: only when the disk is idle)."""
    async_ckpt_use_cpu_shm: bool = False
    """Hand the tensors over in shared host memory."""
    dist_ckpt_workers: int = 1
    """Writer threads of background saves in the fsdp_dtensor layout."""

    # --- temporary checkpoints
    non_persistent_save_interval: int | None = None
    """Steps from one temporary checkpoint to the next."""
    non_persistent_ckpt_type: Literal["global", "local", "in_memory"] | None = None
    """Where temporary checkpoints live: "global" on the shared file system, "local" on each node."""
    non_persistent_global_ckpt_dir: str | None = None
    """Folder of global temporary checkpoints; None means `<save>/non_persistent`."""
    non_persistent_local_ckpt_dir: str | None = None
    """Folder of local temporary checkpoints, on each node."""
    non_persistent_local_ckpt_algo: Literal["fully_parallel", "atomic"] = "fully_parallel"
    """How the ranks share the state of a local temporary checkpoint."""
    replication: bool = False
    """Keep copies of local temporary checkpoints on other nodes."""
    replication_jump: int | None = None
    """Distance in ranks between two holders of the same copy."""
    replication_factor: int = 2
    """Number of nodes that hold each copy."""

    # --- loading
    load: str | None = None
    """Folder to resume from: one with trackers and `iter_*` folders, or one `iter_*` folder."""
    pretrained_checkpoint: str | None = None
    """Folder of the weights to start from when there is nothing to resume; same two forms as `load`."""
    ckpt_step: int | None = None
    """Step to load instead of the newest."""
    finetune: bool = False
    """Load the weights only and begin at step 0."""
    load_optim: bool = True
    """Restore optimizer and scheduler, where stored."""
    load_rng: bool = True
    """Restore the random generators, where stored and where the layout is the same."""
    load_main_params_from_ckpt: bool = False
    """AllButAdapters optimizer state, take the float32 master weights from the stored values instead of from the
    rounded weights."""
    exit_on_missing_checkpoint: bool = False
    """Refuse to start from random weights when `load` or `pretrained_checkpoint` holds no checkpoint."""
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
    """Megatron Core's treatment of entries that only the file or only the run knows. The shapes of the model
    are compared before, in any case."""
    ckpt_load_validate_sharding_integrity: bool = True
    """Check on load that the ranks together ask for each piece exactly once."""
    fully_parallel_load: bool = False
    """Share the reading among the data-parallel ranks, which then exchange the pieces."""
    ckpt_fully_parallel_load_exchange_algo: Literal["broadcast", "gather_rounds", "gather_object"] = (
        "broadcast"
    )
    """How they exchange them."""
    ckpt_fully_parallel_load_process_group: Literal["dp", "ep_dp"] = "dp"
    """Ranks that share the reading."""
    strict_fsdp_dtensor_load: bool = False
    """Refuse partial loads in the fsdp_dtensor layout."""
    stream_ckpt_dequant: bool = True
    """Dequantise one tensor at a time while loading FP8 and FP4 weights, instead of all before."""
    auto_detect_ckpt_format: bool = False
    """Find out the layout of the checkpoint. Always done, whatever the value."""
    use_checkpoint_args: bool = False
    """Take the model's settings from the checkpoint."""
    use_mp_args_from_checkpoint_args: bool = False
    """Take the parallel sizes from the checkpoint."""
    use_tokenizer_model_from_checkpoint_args: bool = True
    """Take the path of the tokenizer from the checkpoint, where its settings are taken at all."""

    # --- other forms and other managers
    custom_manager_class: str | None = None
    """Dotted name of the class that takes the place of the default manager."""
    also_save_hf_checkpoint: bool = False
    """Write the weights in Hugging Face form too, under `iter_*/hf`."""
    hf_source_path: str | None = None
    """Hugging Face model that serves as the template of that form."""
    hf_trust_remote_code: bool = False
    """Allow code that comes with the template."""
    hf_distributed_save: bool = False
    """Let several ranks write that form."""
    hf_save_every_n_ranks: int = 1
    """Distance between the ranks that write it."""
    ckpt_convert_format: Literal["torch", "torch_dist"] | None = None
    """Layout to convert to."""
    ckpt_convert_save: str | None = None
    """Folder of the converted checkpoint."""
    ckpt_convert_update_legacy_dist_opt_format: bool = False
    """Convert the distributed-optimizer layout of 2024."""

    trust: bool = False
    """Unpickle whatever the checkpoints that are loaded hold: their authors can then execute any code here. For legacy
    checkpoints, and for data loaders whose position is an object of a class of their own."""

    # --- dumps for debugging
    save_params_interval: int | None = None
    """Steps between dumps of the parameters."""
    save_activations_interval: int | None = None
    """Steps between dumps of the activations."""
    save_tokens_per_expert_interval: int | None = None
    """Steps between dumps of the experts' load."""
    save_wgrads_interval: int | None = None
    """Steps between dumps of the weight gradients."""
    save_dgrads_interval: int | None = None
    """Steps between dumps of the data gradients."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing.

        Raises:
            CheckpointConfigError: values cannot work together, or are not carried out (V064 to V069 and others); the
                message has a line for each.
            FieldTypeError: values have a wrong type.
        """
        reject_wrong_types(self, path="checkpoint")
        lines = violations(self)
        if lines:
            raise CheckpointConfigError("\n".join(lines))
