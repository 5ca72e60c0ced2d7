"""Uses of a trained model: perplexity, scores, generated text, tasks of lm-evaluation-harness, metrics of the user.

`metrics.py` is called in the evaluations of a run and `perplexity.py` after it. `generation.py` continues a text with
the token that `sampling_options.py` chooses; `scoring.py` does so for batches, for `lm_eval.py` and
`lm_eval_tasks.py`.
"""
