"""L2 norms of weights and gradients of a distributed model. Adapters for torch.

`parameters.py` computes the norm of all parameters, `gradients.py` one for each parameter, `model.py` serves a run, and
`tensors.py` writes norms of chosen steps to a file.
"""
