"""Parameter-efficient fine-tuning with adapters, trained while the model's own weights are frozen.

`config.py` is the section; before a launch its `rules.py` check it. When the model is built, `lora.py` installs:
`selection.py` chooses the layers by the patterns of `targets.py`, `linears.py` describes them, and
`adapted_linear.py` puts an `adapter.py` around each (`transform.py` is a method of the user's own). `loading.py`
reads adapters after the base weights; `hugging_face.py` exports them.
"""
