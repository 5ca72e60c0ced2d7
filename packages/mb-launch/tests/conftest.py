"""This folder on the path, for the modules that tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
