"""Rules that relate the section to the model and to the kind of sharding. Standard library only."""

from mb_schema.rule_kinds import within
from mb_schema.rules import Rule

_FSDP = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
_FORMAT = within("checkpoint", "ckpt_format save load")
_EXPORT = (
    "checkpoint.also_save_hf_checkpoint",
    "checkpoint.hf_source_path",
    "model.hf_model_id",
    "tokenizer.tokenizer_model",
)


def _export_without_source(export: bool | None, *sources: object) -> str | None:
    if not export or any(sources):
        return None
    return "is true, but no Hugging Face model is set"


def _format_of_other_sharding(
    form: str | None, save: object, load: object, torchs: bool | None, *megatrons: bool | None
) -> str | None:
    if form != "fsdp_dtensor" or not (save or load):
        return None
    if not any(megatrons):
        return "is fsdp_dtensor, but use_megatron_fsdp is false"
    return "is fsdp_dtensor, but use_torch_fsdp2 is true" if torchs else None


def _format_without_shards(form: str | None, save: object, load: object, *on: bool | None) -> str | None:
    if not any(on) or not (save or load) or form in (None, "fsdp_dtensor"):
        return None
    return f"is {form} under Megatron-FSDP"


RULES: tuple[Rule, ...] = (
    Rule(
        id="V129",
        fields=_EXPORT,
        test=_export_without_source,
        why="the configuration and the tokenizer of the exported model are copied from it",
        fix="Set checkpoint.hf_source_path.",
        fails={_EXPORT[0]: True},
        passes={_EXPORT[0]: True, _EXPORT[1]: "/models/llama"},
    ),
    Rule(
        id="V130",
        fields=(*_FORMAT, "dist.use_torch_fsdp2", *_FSDP),
        test=_format_of_other_sharding,
        why="this format stores the shards of Megatron-FSDP",
        fix="Set checkpoint.ckpt_format=torch_dist, or ddp.use_megatron_fsdp=true and dist.use_torch_fsdp2=false.",
        fails={"checkpoint.ckpt_format": "fsdp_dtensor", "checkpoint.save": "checkpoints"},
        passes={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.save": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
    ),
    Rule(
        id="V175",
        fields=(*_FORMAT, *_FSDP),
        test=_format_without_shards,
        why="other formats do not support its sharding",
        fix="Set checkpoint.ckpt_format=fsdp_dtensor.",
        fails={
            "checkpoint.ckpt_format": "torch_dist",
            "checkpoint.load": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
        passes={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.load": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
    ),
)
