"""Rows that train ten steps of further kinds of models, packed questions and answers, and adapters."""

import json
from typing import Any

from first_run.machine import Machine
from first_run.row import BF16, ENGINE, WITHOUT_TENSORBOARD, Row, RowFailed, mb, out_of
from first_run.training_rows import losses_of, require_falling, rounded, validation_of

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
ADAPTERS = (
    "peft=lora",
    "peft.dim=8",
    "optimizer.lr=0.005",
    "train.train_iters=40",
    "validation.eval_interval=10",
    "validation.eval_iters=8",
)
"""Forty steps, because the base has made ten, and the same 64 sequences of the validation set after each ten."""
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
        fine_tuning_row("finetune.lora", "gpt_tiny", *ADAPTERS, check=adapted),
    ]


def family_row(row: str, recipe: str, *settings: str, saves: bool = False, **fields: Any) -> Row:
    """Return a row that trains ten steps of a recipe, whose loss must fall."""
    words = (*TEN_STEPS, *BF16, *(("checkpoint.save_interval=10",) if saves else ()), *settings)

    return Row(
        id=row,
        limit_seconds=120,
        command=lambda machine: mb("pretrain", *machine.words(words, recipe=recipe), *out_of(machine, row)),
        check=lambda machine: learned(machine, row),
        settings=(recipe, *words),
        **{"needs": ENGINE, **fields},
    )


def fine_tuning_row(row: str, recipe: str, *settings: str, check: Any = None) -> Row:
    """Return a row that trains from the weights of the row `BASE`, ten steps unless `settings` have another number."""
    words = (*TEN_STEPS, *BF16, *settings)

    def command(machine: Machine) -> list[str]:
        base = machine.trained(BASE) / "checkpoints"
        start = [f"checkpoint.pretrained_checkpoint={base}"]
        if recipe == "sft_tiny":
            start.append(f"tokenizer.tokenizer_model={base / f'iter_{TEN:07d}' / 'tokenizer.json'}")
        return mb("finetune", *machine.words((*words, *start), recipe=recipe), *out_of(machine, row))

    return Row(
        id=row,
        limit_seconds=120,
        command=command,
        check=lambda machine: (check or learned)(machine, row),
        settings=(recipe, *words, "checkpoint.pretrained_checkpoint={folder}"),
        needs=ENGINE,
        after=(BASE,),
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
    """Return the losses on the validation set, which must fall from the first evaluation to the last.

    Raises:
        RowFailed: They did not.
    """
    found = validation_of(machine.trained(row))
    first, last = min(found, default=0), max(found, default=0)
    if not found or first == last or not found[last] < found[first] < float("inf"):
        raise RowFailed(f"the loss of the validation set did not fall: {found}")
    return {"validation": rounded(found)}
