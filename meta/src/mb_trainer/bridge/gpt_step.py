"""Forward step and batches of `megatron.bridge.training.gpt_step`, for recipes and for forward steps of the user."""

from importlib import import_module
from typing import Any

from mb_trainer.errors import UserCodeError


def forward_step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Run one microbatch of a GPT, as the trainer does without a forward step; `state` has the dataset section."""
    steps = import_module("mb_models.training.forward_step")  # imports torch and megatron, after all checks
    step = steps.GPTForwardStep(**import_module("mb_trainer.run.data").batch_form(state.cfg))
    return step(data_iterator, model, return_schedule_plan)


def get_batch(
    data_iterator: Any,
    cfg: Any,
    use_mtp: bool = False,
    *,
    pg_collection: Any,
    vp_stage: int | None = None,
) -> tuple[Any, Any, Any, Any, Any, dict[str, Any] | None]:
    """Read the next microbatch for this stage, on its device and split over context-parallel ranks.

    Args:
        data_iterator: Data of this rank.
        cfg: Configuration, of which the dataset gives the form of the batches.
        use_mtp: Whether the model predicts several tokens; the last stage then needs the inputs, too.
        pg_collection: Process groups with `pp` and `cp`.
        vp_stage: Number of the model chunk in an interleaved pipeline.

    Returns:
        Tokens, labels, loss mask, attention mask, positions, each None where the stage does not need it; and the
        boundaries of packed sequences for `get_packed_seq_params`, or None.

    Raises:
        UserCodeError: The layout of the pipeline decides which stage predicts further tokens, or the batches have a
            padding mask, which this result has no place for.
        mb_models.BatchError: See `mb_models.get_batch`.
    """
    form = import_module("mb_trainer.run.data").batch_form(cfg)
    if form.get("padded") or (use_mtp and cfg.model.pipeline_model_parallel_layout is not None):
        problem = (
            "the batches have a padding mask"
            if form.get("padded")
            else "model.pipeline_model_parallel_layout"
        )
        raise UserCodeError(
            f"get_batch: {problem}, which it does not read. Call mb_models.get_batch, which mb_models.GPTForwardStep "
            "uses."
        )
    chunks = cfg.model.virtual_pipeline_model_parallel_size or 1
    rank, stages = pg_collection.pp.rank(), pg_collection.pp.size()
    last = rank == stages - 1 and vp_stage in (None, chunks - 1)
    torch = import_module("torch")
    batch = import_module("mb_models").get_batch(
        data_iterator,
        first_stage=rank == 0 and not vp_stage,
        last_stage=last,
        device=torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu"),
        cp_group=pg_collection.cp,
        mtp_process=use_mtp and last,
        **form,
    )
    return (
        batch.tokens_BS,
        batch.labels_BS,
        batch.loss_mask_BS,
        batch.attention_mask_B1SS,
        batch.position_ids_BS,
        None if batch.packed_seq_params is None else {"packed_seq_params": batch.packed_seq_params},
    )


def get_packed_seq_params(batch: dict[str, Any]) -> Any:
    """Return Megatron's PackedSeqParams of the boundaries that `get_batch` returned."""
    return batch["packed_seq_params"]
