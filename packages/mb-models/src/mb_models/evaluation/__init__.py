"""Uses of a trained model: perplexity, scores, generated text, tasks of lm-evaluation-harness, and metrics of the user."""
