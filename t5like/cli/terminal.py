"""Colours, where a person reads along."""

import os
import sys

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}


def in_colour() -> bool:
  """Standard output is a terminal, and nobody asked for plain text (no-color.org)."""
  return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str) -> str:
  return f"\033[{_CODES[colour]}m{text}\033[0m" if in_colour() else text
