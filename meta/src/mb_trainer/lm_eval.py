"""Runs as models of lm-evaluation-harness. Imports torch, megatron and lm_eval (extra `lm-eval`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mb_data.trainer_api import EvaluationTokenizer
from mb_models.trainer_api import TrainedLM, register_model, require_text_family, stop_tokens
from mb_trainer.run.saved_run import SavedRun
from mb_trainer.sampling import loaded_model, processes


@contextmanager
def open_lm(
    run: str | Path, *, bos: bool = False, log: Callable[[str], object] = lambda _line: None, **options: Any
) -> Iterator[TrainedLM]:
    """Open the newest intact checkpoint of a run for `lm_eval.simple_evaluate(model=...)`.

    Processes that torchrun or srun started divide the model as the run did; further ones share the requests. `options`
    are those of `TrainedLM.of`. Raises the errors of `sample_run` and `EvaluationTokenizer`.
    """
    saved = SavedRun.find(Path(run), purpose="evaluate", log=log, processes=processes(), replicas=True)
    texts = EvaluationTokenizer(saved.tokenizer(), add_bos=bos)
    require_text_family(saved.config.model)
    with loaded_model(saved, tokenizer_vocab_size=texts.vocab_size) as model:
        info = {"run": str(run), "step": saved.checkpoint.step}
        yield TrainedLM.of(
            model,
            texts,
            context_length=saved.config.model.seq_length,
            stop_tokens=stop_tokens(saved.checkpoint.path),
            info=info,
            **options,
        )


register_model("mb", open_lm)
