"""A signal at a chosen file operation: `install()` in a process, or the variable SIGNAL_POINT in one that it starts.

The variable is a JSON object: `pattern` (a regular expression on the operation and its paths, such as
"os.rename .*latest"), `receiver` (a process), `number` (the signal) and `mark` (a file that is made when it is sent:
it is sent once).
"""

import json
import os
import re
import sys

VARIABLE = "SIGNAL_POINT"
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove"}
_installed = []


def install():
    """Watch the file operations of this process."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_look_at)


def _look_at(event, arguments):
    if event not in OPERATIONS or VARIABLE not in os.environ:
        return
    plan = json.loads(os.environ[VARIABLE])
    operation = " ".join([event, *map(str, arguments[:2])])
    if str(plan["mark"]) in operation or not re.match(plan["pattern"], operation):
        return
    try:
        os.close(os.open(plan["mark"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    os.kill(plan["receiver"], plan["number"])
