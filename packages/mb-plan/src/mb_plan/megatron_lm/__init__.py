"""A command line of Megatron-LM as the sections of a run.

`command_line` splits it into words and gives each flag its value by the table of Megatron Core's flags in flags.json,
which also has the use of a plan for each flag. `sections` turns the values into fields of the sections.
"""
