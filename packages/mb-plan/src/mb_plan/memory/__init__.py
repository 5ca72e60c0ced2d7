"""What a run holds on each GPU: parameters with their gradients and optimizer state, activations, and overhead.

`resource_plan` is the way through it: `model_chunks` splits the layers over stages, `parameter_counts` and
`parameter_storage` count their state, `stage_activations` what autograd keeps, `overhead` the rest.
"""
