"""The container of all sections, and its way from and to files.

`section.py` is the base class of sections and `container.py` holds them; `codec.py` converts to plain data,
`yaml_file.py` reads files with line numbers, `section_types.py` checks types, `display.py` prints.
"""
