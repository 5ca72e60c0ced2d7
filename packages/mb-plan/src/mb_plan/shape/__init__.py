"""What a model is: its sizes and parallel sizes, read once from fields with Megatron's names.

`fields` reads one field, `model_shape` all of them, with the letters of hybrid layers in `hybrid_pattern`, and
`size_limits` rejects what could not be walked layer by layer.
"""
