"""What a model is: its sizes and parallel sizes, read once from fields with Megatron's names.

`sources` finds the fields in a file or options, `hugging_face` those of a config.json. `model_shape` reads them, by
`fields` and with the letters of `hybrid_pattern`; `fields` also rejects what could not be walked layer by layer.
`products` lists the matrix products of each kind of layer, from which `flops` and the time of a step are counted.
"""
