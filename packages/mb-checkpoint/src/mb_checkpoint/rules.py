"""What a `checkpoint` section must satisfy, and what this version does not carry out and therefore refuses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DISTRIBUTED_FORMATS = ("torch_dist", "fsdp_dtensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One check: `test` gets the values of `fields` in order and returns None, or what is wrong with them."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def pretrained_exists(path: str | None) -> str | None:
    """Say whether the folder of the starting weights is there."""
    return None if path is None or Path(path).is_dir() else f"no such folder: {path}"


def finetuning_starts_somewhere(finetune: bool, pretrained: str | None, load: str | None) -> str | None:
    """Say whether there are weights to fine-tune."""
    if not finetune or pretrained is not None:
        return None
    if load is None:
        return "finetune=true, but neither pretrained_checkpoint nor load is set"
    folder = Path(load)
    if folder.is_dir() and any(folder.iterdir()):
        return None
    return f"finetune=true, but pretrained_checkpoint is not set, and load={load} holds nothing"


def main_params_without_optimizer(from_checkpoint: bool, load_optim: bool) -> str | None:
    """Say whether the master weights would come from two places."""
    both = from_checkpoint and load_optim
    return "load_main_params_from_ckpt=true together with load_optim=true" if both else None


def async_has_a_target(async_save: bool, save: str | None, persistent_worker: bool) -> str | None:
    """Say whether a background save knows where to write and with which worker."""
    if async_save and save is None:
        return "async_save=true, but save is not set"
    if async_save and not persistent_worker:
        return "async_save=true with use_persistent_ckpt_worker=false"
    return None


def hugging_face_has_weights(also_save: bool, ckpt_format: str, temporary: str | None) -> str | None:
    """Say whether a Hugging Face form can be made of what is saved."""
    if also_save and ckpt_format == "fsdp_dtensor":
        return "also_save_hf_checkpoint=true with ckpt_format=fsdp_dtensor"
    if also_save and temporary == "local":
        return "also_save_hf_checkpoint=true with non_persistent_ckpt_type=local"
    return None


def step_has_a_folder(ckpt_step: int | None, load: str | None) -> str | None:
    """Say whether the wanted step can be looked for."""
    return f"ckpt_step={ckpt_step}, but load is not set" if ckpt_step is not None and load is None else None


def one_reshardable_form(fully_reshardable: bool, memory_efficient: bool) -> str | None:
    """Say whether two forms of the optimizer state are asked for."""
    both = fully_reshardable and memory_efficient
    return "both reshardable forms of the optimizer state are switched on" if both else None


def async_format(async_save: bool, ckpt_format: str) -> str | None:
    """Say whether the layout can be written in the background."""
    wrong = async_save and ckpt_format not in DISTRIBUTED_FORMATS
    return f"async_save=true with ckpt_format={ckpt_format}" if wrong else None


def format_without_gloo(gloo: bool, distributed_optimizer: bool, ckpt_format: str) -> str | None:
    """Say whether the optimizer state can be gathered without Gloo groups."""
    wrong = not gloo and distributed_optimizer and ckpt_format not in DISTRIBUTED_FORMATS
    return f"no Gloo groups, a distributed optimizer and ckpt_format={ckpt_format}" if wrong else None


def keeps_some(most_recent_k: int | None) -> str | None:
    """Say whether a number of checkpoints to keep makes sense."""
    good = most_recent_k is not None and (most_recent_k == -1 or most_recent_k >= 1)
    return None if good else f"most_recent_k={most_recent_k}"


def at_least_one_writer(writers: int) -> str | None:
    """Say whether somebody writes."""
    return None if writers >= 1 else f"storage_writers_per_rank={writers}"


def known_format(ckpt_format: str) -> str | None:
    """Say whether this version writes that layout."""
    return None if ckpt_format == "torch_dist" else f"ckpt_format={ckpt_format}"


def strictness_without_lists(strictness: str) -> str | None:
    """Say whether the load would hand back lists that nobody reads."""
    return f"dist_ckpt_strictness={strictness}" if strictness.startswith("return_") else None


def intervals_count(*intervals: int | None) -> str | None:
    """Say whether the steps between two checkpoints are a number of steps."""
    names = ("save_interval", "non_persistent_save_interval")
    wrong = [
        f"{name}={value}"
        for name, value in zip(names, intervals, strict=True)
        if value is not None and value < 1
    ]
    return ", ".join(wrong) or None


def temporary_has_a_kind(interval: int | None, kind: str | None) -> str | None:
    """Say whether temporary checkpoints have a place."""
    wrong = interval is not None and kind is None
    return (
        f"non_persistent_save_interval={interval}, but non_persistent_ckpt_type is not set" if wrong else None
    )


def kind_exists(kind: str | None) -> str | None:
    """Say whether somebody writes temporary checkpoints of that kind."""
    return "non_persistent_ckpt_type=in_memory" if kind == "in_memory" else None


def local_has_a_folder(kind: str | None, folder: str | None) -> str | None:
    """Say whether local checkpoints know where to go."""
    wrong = kind == "local" and folder is None
    return "non_persistent_ckpt_type=local, but non_persistent_local_ckpt_dir is not set" if wrong else None


def copies_of_something(replication: bool, kind: str | None) -> str | None:
    """Say whether there is something to copy to other nodes."""
    wrong = replication and kind != "local"
    return f"replication=true with non_persistent_ckpt_type={kind}" if wrong else None


def known_strategy(strategy: str) -> str | None:
    """Say whether that background writer exists."""
    return None if strategy in ("mcore", "nvrx") else f"async_strategy={strategy}"


def not_yet(number: int, name: str, *, neutral: object, asked: object, lacks: str) -> Rule:
    """Make the rule that refuses any value of a field but the one that asks for nothing."""

    def test(value: object) -> str | None:
        return None if value == neutral else f"{name}={value!r} is not carried out by this version"

    field = f"checkpoint.{name}"
    return Rule(
        id=f"CK{number}",
        fields=(field,),
        test=test,
        why=f"mb-checkpoint {lacks}; ignoring the wish would let a run rely on something that is not there",
        fix=f"Set {field}={neutral!r}.",
        fails={field: asked},
        passes={field: neutral},
    )


CONSISTENCY = (
    Rule(
        id="V064",
        fields=("checkpoint.pretrained_checkpoint",),
        test=pretrained_exists,
        why="a run that asks for starting weights must not begin with random ones",
        fix="Set checkpoint.pretrained_checkpoint to an existing folder, or leave it out.",
        fails={"checkpoint.pretrained_checkpoint": "/no/such/checkpoint"},
        passes={"checkpoint.pretrained_checkpoint": None},
    ),
    Rule(
        id="V065",
        fields=("checkpoint.load_main_params_from_ckpt", "checkpoint.load_optim"),
        test=main_params_without_optimizer,
        why="the optimizer state already holds the master weights",
        fix="Set checkpoint.load_optim=false or checkpoint.load_main_params_from_ckpt=false.",
        fails={"checkpoint.load_main_params_from_ckpt": True, "checkpoint.load_optim": True},
        passes={"checkpoint.load_main_params_from_ckpt": True, "checkpoint.load_optim": False},
    ),
    Rule(
        id="V066",
        fields=("checkpoint.async_save", "checkpoint.save", "checkpoint.use_persistent_ckpt_worker"),
        test=async_has_a_target,
        why="a background save needs a folder, and a worker that outlives the single save",
        fix="Set checkpoint.save and checkpoint.use_persistent_ckpt_worker=true, or async_save=false.",
        fails={
            "checkpoint.async_save": True,
            "checkpoint.save": None,
            "checkpoint.use_persistent_ckpt_worker": True,
        },
        passes={
            "checkpoint.async_save": True,
            "checkpoint.save": "checkpoints",
            "checkpoint.use_persistent_ckpt_worker": True,
        },
    ),
    Rule(
        id="V067",
        fields=(
            "checkpoint.also_save_hf_checkpoint",
            "checkpoint.ckpt_format",
            "checkpoint.non_persistent_ckpt_type",
        ),
        test=hugging_face_has_weights,
        why="the Hugging Face form is made from whole weights on the shared file system",
        fix="Use checkpoint.ckpt_format=torch_dist and no local temporary checkpoints.",
        fails={
            "checkpoint.also_save_hf_checkpoint": True,
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.non_persistent_ckpt_type": None,
        },
        passes={
            "checkpoint.also_save_hf_checkpoint": True,
            "checkpoint.ckpt_format": "torch_dist",
            "checkpoint.non_persistent_ckpt_type": None,
        },
    ),
    Rule(
        id="V068",
        fields=("checkpoint.ckpt_step", "checkpoint.load"),
        test=step_has_a_folder,
        why="a step is looked for in the folder that load names",
        fix="Set checkpoint.load, or leave out checkpoint.ckpt_step.",
        fails={"checkpoint.ckpt_step": 100, "checkpoint.load": None},
        passes={"checkpoint.ckpt_step": 100, "checkpoint.load": "checkpoints"},
    ),
    Rule(
        id="V069",
        fields=(
            "checkpoint.dist_ckpt_optim_fully_reshardable",
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient",
        ),
        test=one_reshardable_form,
        why="they are two ways to write the same thing",
        fix="Set checkpoint.distrib_optim_fully_reshardable_mem_efficient=false.",
        fails={
            "checkpoint.dist_ckpt_optim_fully_reshardable": True,
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient": True,
        },
        passes={
            "checkpoint.dist_ckpt_optim_fully_reshardable": True,
            "checkpoint.distrib_optim_fully_reshardable_mem_efficient": False,
        },
    ),
    Rule(
        id="V244",
        fields=("checkpoint.finetune", "checkpoint.pretrained_checkpoint", "checkpoint.load"),
        test=finetuning_starts_somewhere,
        why="fine-tuning starts from weights",
        fix="Set checkpoint.pretrained_checkpoint, or checkpoint.finetune=false.",
        fails={
            "checkpoint.finetune": True,
            "checkpoint.pretrained_checkpoint": None,
            "checkpoint.load": None,
        },
        passes={
            "checkpoint.finetune": True,
            "checkpoint.pretrained_checkpoint": "/checkpoints/base",
            "checkpoint.load": None,
        },
    ),
    Rule(
        id="V131",
        fields=("checkpoint.async_save", "checkpoint.ckpt_format"),
        test=async_format,
        why="only the distributed layouts can be written in the background",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails={"checkpoint.async_save": True, "checkpoint.ckpt_format": "torch"},
        passes={"checkpoint.async_save": True, "checkpoint.ckpt_format": "torch_dist"},
    ),
    Rule(
        id="V135",
        fields=(
            "dist.use_gloo_process_groups",
            "optimizer.use_distributed_optimizer",
            "checkpoint.ckpt_format",
        ),
        test=format_without_gloo,
        why="the older layouts gather the optimizer state through Gloo",
        fix="Set checkpoint.ckpt_format=torch_dist or dist.use_gloo_process_groups=true.",
        fails={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch",
        },
        passes={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch_dist",
        },
    ),
    Rule(
        id="CK01",
        fields=("checkpoint.most_recent_k",),
        test=keeps_some,
        why="-1 keeps every checkpoint and a positive number keeps that many; 0 would delete the newest one",
        fix="Set checkpoint.most_recent_k=-1, or to 1 or more.",
        fails={"checkpoint.most_recent_k": 0},
        passes={"checkpoint.most_recent_k": 2},
    ),
    Rule(
        id="CK02",
        fields=("checkpoint.storage_writers_per_rank",),
        test=at_least_one_writer,
        why="each rank that writes needs a thread to do it",
        fix="Set checkpoint.storage_writers_per_rank to 1 or more.",
        fails={"checkpoint.storage_writers_per_rank": 0},
        passes={"checkpoint.storage_writers_per_rank": 2},
    ),
    Rule(
        id="CK03",
        fields=("checkpoint.ckpt_format",),
        test=known_format,
        why="this version of mb-checkpoint writes and reads torch_dist only",
        fix="Set checkpoint.ckpt_format=torch_dist.",
        fails={"checkpoint.ckpt_format": "fsdp_dtensor"},
        passes={"checkpoint.ckpt_format": "torch_dist"},
    ),
    Rule(
        id="CK04",
        fields=("checkpoint.dist_ckpt_strictness",),
        test=strictness_without_lists,
        why="the return_* settings hand lists of names to the caller, and nobody reads them here",
        fix="Set checkpoint.dist_ckpt_strictness=log_all or raise_all.",
        fails={"checkpoint.dist_ckpt_strictness": "return_all"},
        passes={"checkpoint.dist_ckpt_strictness": "raise_all"},
    ),
    Rule(
        id="CK05",
        fields=("checkpoint.non_persistent_save_interval", "checkpoint.non_persistent_ckpt_type"),
        test=temporary_has_a_kind,
        why="a temporary checkpoint lies on the shared file system or on each node",
        fix="Set checkpoint.non_persistent_ckpt_type=global.",
        fails={
            "checkpoint.non_persistent_save_interval": 5,
            "checkpoint.non_persistent_ckpt_type": None,
        },
        passes={
            "checkpoint.non_persistent_save_interval": 5,
            "checkpoint.non_persistent_ckpt_type": "global",
        },
    ),
    Rule(
        id="CK06",
        fields=("checkpoint.non_persistent_ckpt_type",),
        test=kind_exists,
        why="no trainer keeps checkpoints in memory; it would fail at the first save",
        fix="Set checkpoint.non_persistent_ckpt_type=global or local.",
        fails={"checkpoint.non_persistent_ckpt_type": "in_memory"},
        passes={"checkpoint.non_persistent_ckpt_type": "global"},
    ),
    Rule(
        id="CK07",
        fields=("checkpoint.non_persistent_ckpt_type", "checkpoint.non_persistent_local_ckpt_dir"),
        test=local_has_a_folder,
        why="local checkpoints lie in a folder of each node",
        fix="Set checkpoint.non_persistent_local_ckpt_dir.",
        fails={
            "checkpoint.non_persistent_ckpt_type": "local",
            "checkpoint.non_persistent_local_ckpt_dir": None,
        },
        passes={
            "checkpoint.non_persistent_ckpt_type": "local",
            "checkpoint.non_persistent_local_ckpt_dir": "/local/checkpoints",
        },
    ),
    Rule(
        id="CK08",
        fields=("checkpoint.replication", "checkpoint.non_persistent_ckpt_type"),
        test=copies_of_something,
        why="only local temporary checkpoints are copied to other nodes",
        fix="Set checkpoint.non_persistent_ckpt_type=local or checkpoint.replication=false.",
        fails={"checkpoint.replication": True, "checkpoint.non_persistent_ckpt_type": "global"},
        passes={"checkpoint.replication": True, "checkpoint.non_persistent_ckpt_type": "local"},
    ),
    Rule(
        id="CK09",
        fields=("checkpoint.async_strategy",),
        test=known_strategy,
        why="Megatron Core knows these two names",
        fix="Set checkpoint.async_strategy=mcore.",
        fails={"checkpoint.async_strategy": "thread"},
        passes={"checkpoint.async_strategy": "mcore"},
    ),
    Rule(
        id="CK10",
        fields=("checkpoint.save_interval", "checkpoint.non_persistent_save_interval"),
        test=intervals_count,
        why="it counts the steps between two checkpoints",
        fix="Set it to 1 or more, or to null for none but the last.",
        fails={"checkpoint.save_interval": 0, "checkpoint.non_persistent_save_interval": None},
        passes={"checkpoint.save_interval": 100, "checkpoint.non_persistent_save_interval": None},
    ),
)

NOT_YET = (
    not_yet(19, "dist_ckpt_save_pre_mcore_014", neutral=False, asked=True, lacks="writes today's layout"),
    not_yet(
        20,
        "distrib_optim_fully_reshardable_mem_efficient",
        neutral=False,
        asked=True,
        lacks="gathers through the training's own groups",
    ),
    not_yet(22, "also_save_hf_checkpoint", neutral=False, asked=True, lacks="writes Megatron's form only"),
    not_yet(23, "use_checkpoint_args", neutral=False, asked=True, lacks="takes no settings from a file"),
    not_yet(24, "use_mp_args_from_checkpoint_args", neutral=False, asked=True, lacks="takes no settings"),
    not_yet(25, "ckpt_convert_format", neutral=None, asked="torch_dist", lacks="converts nothing"),
    not_yet(26, "ckpt_convert_save", neutral=None, asked="converted", lacks="converts nothing"),
    not_yet(
        27, "ckpt_convert_update_legacy_dist_opt_format", neutral=False, asked=True, lacks="converts nothing"
    ),
    not_yet(28, "save_params_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(29, "save_activations_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(30, "save_tokens_per_expert_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(31, "save_wgrads_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(32, "save_dgrads_interval", neutral=None, asked=10, lacks="writes no dumps"),
)

RULES: tuple[Rule, ...] = (*CONSISTENCY, *NOT_YET)


def refusals(section: object) -> list[str]:
    """Apply every rule that reads only the checkpoint section; return one line per error, none when all is well.

    For those who use the package without a container of sections; nothing is changed.
    """
    lines = []
    for rule in RULES:
        owners = {field.partition(".")[0] for field in rule.fields}
        if owners != {"checkpoint"} or rule.severity != "error":
            continue
        names = [field.partition(".")[2] for field in rule.fields]
        problem = rule.test(*(getattr(section, name) for name in names))
        if problem is not None:
            lines.append(f"{rule.fields[0]}: {problem}, because {rule.why}. {rule.fix} [{rule.id}]")
    return lines
