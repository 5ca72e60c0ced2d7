"""The folder of these tests on the path, for their shared module."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
