"""Uses of a trained model: perplexity, scores, generated text, tasks of lm-evaluation-harness, metrics of the user."""
