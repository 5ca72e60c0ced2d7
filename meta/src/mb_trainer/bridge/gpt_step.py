"""Forward step and batches of `megatron.bridge.training.gpt_step`, for recipes and for forward steps of the user."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mb_trainer.errors import UserCodeError


def forward_step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Run one microbatch of a model of any family, as the trainer does without a forward step; `state` has `cfg`."""
    # Imported here, because it imports torch and megatron, which all checks precede.
    family = import_module("mb_models").family_of(state.cfg.model)
    step = family.forward_step(**import_module("mb_trainer.run.data").batch_form(state.cfg))
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


def get_packed_seq_params(batch: Mapping[str, Any]) -> Any:
    """Return Megatron's PackedSeqParams of the boundaries that `get_batch` returned, or of those in a batch.

    Negative entries behind the last boundary are removed, which synchronizes with the device unless `NAME_argmin` has
    the number of the others.

    Args:
        batch: Fields of PackedSeqParams such as `cu_seqlens_q`, [N + 1] or [1, N + 1], of which those for keys default
            to those for queries; or `cu_seqlens` with padding and optionally `cu_seqlens_unpadded`, and `max_seqlen`.

    Raises:
        UserCodeError: The batch has no boundaries.
    """
    if "packed_seq_params" in batch:
        return batch["packed_seq_params"]
    values: dict[str, Any]
    if "cu_seqlens_q" in batch:
        values = {
            name: _boundaries(batch, f"cu_seqlens_{name}") for name in ("q", "kv", "q_padded", "kv_padded")
        }
        longest = (batch.get("max_seqlen_q"), batch.get("max_seqlen_kv"))
    elif "cu_seqlens" in batch:
        padded, actual = _boundaries(batch, "cu_seqlens"), _boundaries(batch, "cu_seqlens_unpadded")
        # equal boundaries are not given twice: attention has a faster kernel without padding
        values = {"q": padded} if actual is None else {"q": actual, "q_padded": padded, "kv_padded": padded}
        longest = (batch.get("max_seqlen"), None)
    else:
        raise UserCodeError(
            f"get_packed_seq_params: the batch has no cu_seqlens ({', '.join(batch)}), and they separate the sequences "
            "of a pack. Pass cu_seqlens, cu_seqlens_q, or what get_batch returned."
        )
    if values.get("kv") is None:
        values["kv"] = values["q"]
    lengths = [None if each is None else int(each) for each in longest]
    return import_module("megatron.core.packed_seq_params").PackedSeqParams(
        qkv_format="thd",
        **{f"cu_seqlens_{name}": tensor for name, tensor in values.items()},
        max_seqlen_q=lengths[0],
        max_seqlen_kv=lengths[0] if lengths[1] is None else lengths[1],
        total_tokens=batch.get("total_tokens"),
    )


def _boundaries(batch: Mapping[str, Any], name: str) -> Any:
    if batch.get(name) is None:
        return None
    entries, count = batch[name].reshape(-1), batch.get(f"{name}_argmin")
    return entries[entries >= 0] if count is None else entries[: int(count)]
