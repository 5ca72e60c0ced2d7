"""Uses of a trained model: perplexity, scores, generated text, and tasks of lm-evaluation-harness."""
