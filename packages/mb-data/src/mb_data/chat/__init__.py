"""Conversations to tokens: rows to turns, turns to text by a template, text to tokens with a loss on the answers.

In this order: `rows.py`, `turns.py`, `template.py` and `rendering.py`, `message_forms.py`, `encoding.py`, `samples.py`.
`prompt.py` renders up to the answer, for text generation and for an evaluation harness.
"""
