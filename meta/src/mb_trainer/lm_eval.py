"""Runs as models of lm-evaluation-harness. Imports torch, megatron and lm_eval (extra `lm-eval`)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mb_data.evaluation_text import EvaluationTokenizer
from mb_launch import read_world
from mb_models.families import require_text_family
from mb_models.generation import all_logits
from mb_models.lm_eval import TrainedLM, register_model
from mb_models.scoring import BatchedModel
from mb_trainer.sampling import loaded_model
from mb_trainer.saved_run import SavedRun


@contextmanager
def open_lm(
    run: str | Path,
    *,
    batch_size: int | str = 16,
    bos: bool = False,
    log: Callable[[str], object] = lambda _line: None,
    progress: Callable[[str, int], object] = lambda _kind, _count: None,
) -> Iterator[TrainedLM]:
    """Open the newest intact checkpoint of a run for `lm_eval.simple_evaluate(model=...)`.

    Processes that torchrun or srun started divide the model as the run did; further ones share the requests. Raises
    the errors of `SavedRun.find`, `require_text_family` and `EvaluationTokenizer`.
    """
    saved = SavedRun.find(Path(run), purpose="evaluate", log=log, world=read_world(os.environ), replicas=True)
    texts = EvaluationTokenizer(saved.tokenizer(), add_bos=bos)
    require_text_family(saved.config.model)
    with loaded_model(saved, tokenizer_vocab_size=texts.vocab_size) as model:
        yield TrainedLM(
            BatchedModel.of(
                all_logits(model),
                vocab_size=texts.vocab_size,
                context_length=saved.config.model.seq_length,
                batch_size=int(batch_size),
            ),
            texts,
            replicas=model.pg_collection.dp,
            info={"run": str(run), "step": saved.checkpoint.step},
            progress=progress,
        )


register_model("mb", open_lm)
