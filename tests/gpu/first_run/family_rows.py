"""Rows that train ten steps of further kinds of models, packed questions and answers, and adapters."""

import json
from typing import Any

from first_run.machine import Machine
from first_run.row import BF16, ENGINE, WITHOUT_TENSORBOARD, Row, RowFailed, mb, out_of
from first_run.training_rows import losses_of, require_falling, rounded

TEN = 10
TEN_STEPS = (
    f"train.train_iters={TEN}",
    "validation.eval_interval=null",
    "checkpoint.save_interval=null",
    "logger.log_interval=5",
    "scheduler.lr_warmup_iters=2",
    WITHOUT_TENSORBOARD,
)
BASE = "family.base"
"""Row whose weights the rows of fine-tuning start from."""
LITTLE_TRAINED = "finetune.lora_base"
"""Row whose weights adapters start from: after two steps its loss is that of a uniform guess, which adapters lower by
several times what the samples of a step make it vary."""
ADAPTERS = ("peft=lora", "peft.dim=8", "optimizer.lr=0.01", "train.train_iters=20")
LEAST_FALL = 0.3
"""Part of the logarithm by which the losses must fall; on a CPU they fall from 8.39 to 7.6."""
TWO_STEPS = ("train.train_iters=2", "checkpoint.save_interval=2", "scheduler.lr_warmup_iters=1")
PACKED = (
    "dataset.packed_sequence_specs.packed_sequence_size=256",
    "train.micro_batch_size=1",
    "train.global_batch_size=8",
)


def family_rows() -> list[Row]:
    """Return the rows of kinds of models, each on Transformer Engine's layers in BF16."""
    mamba = (*ENGINE, "mamba_ssm", "fla")
    return [
        family_row(
            "family.experts", "moe_tiny", "model.moe_grouped_gemm=true", "model.moe_permute_fusion=true"
        ),
        family_row("family.t5", "t5_tiny"),
        family_row("family.images", "mimo_tiny"),
        family_row("family.hybrid", "hybrid_tiny", needs=mamba),
        family_row(
            "family.hybrid_without_mamba",
            "hybrid_tiny",
            "model.hybrid_layer_pattern='*-*-'",
            "model.num_layers=4",
        ),
        family_row(BASE, "gpt_tiny", saves=True),
        fine_tuning_row("finetune.packed", "sft_tiny", *PACKED),
        family_row(LITTLE_TRAINED, "gpt_tiny", *TWO_STEPS, saves=True, check=lambda machine: {}),
        fine_tuning_row("finetune.lora", "gpt_tiny", *ADAPTERS, base=LITTLE_TRAINED, check=adapted),
    ]


def family_row(row: str, recipe: str, *settings: str, saves: bool = False, **fields: Any) -> Row:
    """Return a row that trains ten steps of a recipe, whose loss must fall."""
    words = (*TEN_STEPS, *BF16, *(("checkpoint.save_interval=10",) if saves else ()), *settings)

    return Row(
        id=row,
        limit_seconds=120,
        command=lambda machine: mb("pretrain", *machine.words(words, recipe=recipe), *out_of(machine, row)),
        settings=(recipe, *words),
        **{"needs": ENGINE, "check": lambda machine: learned(machine, row), **fields},
    )


def fine_tuning_row(row: str, recipe: str, *settings: str, base: str = BASE, check: Any = None) -> Row:
    """Return a row that trains from the weights of another one, ten steps unless `settings` have another number."""
    words = (*TEN_STEPS, *BF16, *settings)

    def command(machine: Machine) -> list[str]:
        weights = machine.trained(base) / "checkpoints"
        start = [f"checkpoint.pretrained_checkpoint={weights}"]
        if recipe == "sft_tiny":
            start.append(f"tokenizer.tokenizer_model={weights / f'iter_{TEN:07d}' / 'tokenizer.json'}")
        return mb("finetune", *machine.words((*words, *start), recipe=recipe), *out_of(machine, row))

    return Row(
        id=row,
        limit_seconds=120,
        command=command,
        check=lambda machine: (check or learned)(machine, row),
        settings=(recipe, *words, "checkpoint.pretrained_checkpoint={folder}"),
        needs=ENGINE,
        after=(base,),
    )


def learned(machine: Machine, row: str) -> dict[str, Any]:
    """Return the losses of a run of ten steps.

    Raises:
        RowFailed: The loss did not fall, or the layers are not those of Transformer Engine.
    """
    losses = losses_of(machine.trained(row))
    require_falling(losses, steps=TEN)
    log = (machine.trained(row) / "log.txt").read_text()
    if machine.gpu and "Transformer Engine layers" not in log:
        raise RowFailed(f"the layers are not Transformer Engine's: {json.dumps(log.splitlines()[:6])}")
    return {"losses": rounded(losses)}


def adapted(machine: Machine, row: str) -> dict[str, Any]:
    """Return the losses of adapters, the last five of which must be below the last one of their base.

    Raises:
        RowFailed: They are not.
    """
    losses, base = losses_of(machine.trained(row)), losses_of(machine.trained(LITTLE_TRAINED))
    last = [losses[step] for step in sorted(losses)[-5:]]
    before, after = base[max(base)], sum(last) / max(1, len(last))
    if not after < before - LEAST_FALL:
        raise RowFailed(f"adapters have a loss of {after:.3f}, their base {before:.3f}: {rounded(losses)}")
    return {"base": round(before, 4), "losses": rounded(losses)}
