"""Span corruption for T5: section, rules, sizes of spans, builder and dataset."""
