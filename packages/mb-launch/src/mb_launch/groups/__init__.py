"""Process groups and seeds of a rank, in the order of a start.

`default_group.py` opens the default group of any torch program, `seeds.py` seeds the generators;
`decentralized_pg.py` makes groups in place of Megatron's globals.
"""
