"""T5 models: section, rules, provider with forward step, parameter count."""
