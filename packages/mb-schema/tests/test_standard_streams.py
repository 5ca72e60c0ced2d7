"""Standard streams that are closed when a program starts."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from mb_schema.standard_streams import open_standard_streams

open_standard_streams()
file = open(sys.argv[1], "w")
print("printed")
print("printed", file=sys.stderr)
child = f"import os; os.write(1, b'from a child'); os.write(2, b'from a child')"
code = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", child])
file.write(f"{file.fileno() > 2} {sys.stdin.read()!r} {code}")
"""


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,), (2,), (0, 2)])
def test_no_other_file_takes_the_place_of_a_closed_stream(tmp_path, closed):
    """A file of the program holds what the program writes to it alone, and children can print."""

    def close():
        for number in closed:
            os.close(number)

    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    ended = subprocess.run(words, preexec_fn=close, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0
    assert (tmp_path / "file").read_text() == "True '' 0"


def test_open_streams_are_left_as_they_are(capfd):
    from mb_schema.standard_streams import open_standard_streams

    before = sys.stdin, sys.stdout, sys.stderr
    open_standard_streams()
    assert (sys.stdin, sys.stdout, sys.stderr) == before
    print("printed")
    assert capfd.readouterr().out == "printed\n"
