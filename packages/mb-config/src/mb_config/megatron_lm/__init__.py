"""Conversion of the arguments of Megatron-LM's `pretrain_gpt.py` to a configuration of this project.

`script.read_words` reads arguments from a text or a shell script, `flag_table.parse_flags` gives them their names and
types by the table of flags in flags.json, and `conversion.convert` returns the configuration, with what has no
counterpart.
"""
