"""The forecasts in launch/README.md and in the headers of gin/runs are those that `t5like plan` prints."""

import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^    (t5like plan .*?[^\\])\n\n", re.DOTALL | re.MULTILINE)
HEADER = re.compile(r"eight H200: ([\d.]+) (h|days)[^()]*\(t5like plan\s+--topology=h200x8")
PRINTED = {
  "step": r"^step +([\d.]+) ms",
  "run": r"^run .*?: ([\d.]+) (?:hours|days)",
  "memory": r"^ +peak +([\d.]+) GiB",
}


def rows_of_tables():
  """Yields the options of each row of a table below a command, whose topology it replaces, and the figures in it."""
  page = (REPOSITORY / "launch/README.md").read_text(encoding="utf-8")
  for command in COMMAND.finditer(page):
    header, _, *rows = page[command.end() :].split("\n\n")[0].splitlines() + ["", ""]
    for row in filter(None, rows) if header.startswith("| `--topology`") else ():
      cells = [cell.strip().strip("`") for cell in row.strip("|").split("|")]
      options = shlex.split(command[1].replace("\\\n", " "))[2:] + shlex.split(f"--topology={cells[0]}")
      first = [cell.split()[0].replace(",", "") for cell in cells]
      yield cells[0], options, {"step": first[1], "run": first[2], "memory": first[6]}


def headers():
  """Yields the options and the hours or days of each run whose file has a forecast."""
  for path in sorted((REPOSITORY / "gin/runs").glob("*.gin")):
    if found := HEADER.search(path.read_text(encoding="utf-8").replace("\n#", "")):
      yield path.stem, [f"--gin_file=runs/{path.name}", "--topology=h200x8"], {"run": found[1]}


CASES = [*rows_of_tables(), *headers()]


def test_all_forecasts_are_found():
  assert len([*rows_of_tables()]) == 9 and len([*headers()]) == 9


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("options", "figures"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_forecasts_are_those_of_the_command(t5like, options, figures):
  """To the digits that a page shows."""
  printed = t5like("plan", *options).stdout
  for name, figure in figures.items():
    value = float(re.search(PRINTED[name], printed, re.MULTILINE)[1])
    digits = len(figure.partition(".")[2])
    assert abs(value - float(figure)) <= 0.51 * 10**-digits, f"{name} is {value}"
