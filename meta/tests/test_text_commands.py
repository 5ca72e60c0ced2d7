"""Output of `mb sample` and `mb eval`."""

import json
import math

from mb_models.evaluation.perplexity import Perplexity
from mb_trainer.commands.text import perplexity_lines, print_pieces, rows_of

PIECES = [(0, "def "), (0, "f"), (0, "(x)"), (1, "class "), (1, "A")]


def test_pieces_are_printed_by_prompt(capsys):
    print_pieces(PIECES)
    assert capsys.readouterr().out == "def f(x)\n\nclass A\n"


def test_pieces_are_rows_of_prompt_and_text():
    assert json.loads(json.dumps(rows_of(PIECES))) == [
        {"prompt": "def ", "text": "f(x)"},
        {"prompt": "class ", "text": "A"},
    ]


def test_a_set_without_a_token_in_the_loss_has_no_perplexity():
    rows = perplexity_lines(
        [
            Perplexity(name="news", loss_sum=0.0, tokens=0),
            Perplexity(name="", loss_sum=math.log(4.0) * 10, tokens=10),
        ]
    )
    assert rows[1].split() == ["news", "0", "no", "token", "in", "the", "loss", "-"]
    assert rows[2].split() == ["validation", "10", f"{math.log(4.0):.6f}", "4.0000"]
