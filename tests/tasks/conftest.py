"""The rows in library/ are for test_t5_library.py, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "library"))  # golden_rows
