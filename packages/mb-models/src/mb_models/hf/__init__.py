"""Conversion of weights from and to folders in the Hugging Face format.

A family is data: `family.py` is its record, `families.py` the table of all, and the files `*_families.py` and
`*_fields.py` have the records and the fields that several share. An import reads `config_json.py` (`adoption.py` for
a run that starts from the weights), then `load.py`, with the names of `weight_tables.py`, from
`safetensors_files.py`. An export goes `export.py`, `export_plan.py`, `save.py`; `conversion.py` makes the model of
one rank for both.
"""
