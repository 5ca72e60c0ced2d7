"""GPT models of Megatron Core, from a section to a pipeline stage.

`transformer.py` converts the section, `layer_choice.py` and `layer_specs.py` select layers, and `provider.py` builds.
The other files are variants of layers that Megatron Core does not have, installed by `layer_variants.py`.
"""
