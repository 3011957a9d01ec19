"""Helpers of the tests in all sub-folders: those in this folder, and those that the makers of golden files share."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER / "goldens")]  # head_cases, inside_cases, zoo_weights
