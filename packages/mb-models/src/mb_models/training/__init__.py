"""What a model needs to be trained: `setup.py` builds model, optimizer and scheduler from a section.

`chunks.py` and `wrap.py` build and wrap the chunks of a rank (`fsdp.py` shards them), `freezing.py` freezes,
`batches.py` and `forward_step.py` feed them. `vocab.py`, `weight_shapes.py` and `stored_architecture.py` settle sizes
before.
"""
