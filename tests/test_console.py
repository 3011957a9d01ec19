"""Progress in a terminal and in a log, tables, durations, sizes and colors."""

import io
import subprocess
import sys

from t5like import console
from t5like.console import ProgressLine, byte_size, duration, memory_size, paint, table


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_the_progress_line_rewrites_itself_in_a_terminal_and_is_rare_in_a_log():
  terminal = Terminal()
  line = ProgressLine(terminal)
  line.show("step 1 of 100")
  line.show("step 2")
  line.show("done", final=True)
  assert terminal.getvalue() == "\rstep 1 of 100\rstep 2       \rdone  \n"
  log = io.StringIO()
  line = ProgressLine(log, log_every=60)
  for i in range(50):
    line.show(f"step {i}")
  line.show("end", final=True)
  assert log.getvalue() == "step 0\nend\n"


def test_progress_of_quick_work_is_its_last_line_where_it_is_not_eager():
  log = io.StringIO()
  line = ProgressLine(log, log_every=60, eager=False)
  line.show("1 row")
  line.show("2 rows", final=True)
  assert log.getvalue() == "2 rows\n"


def test_progress_in_a_process_of_its_own_does_not_load_jax():
  program = "import sys\nfrom t5like.console import ProgressLine, paint\n"
  program += "ProgressLine(first_host_only=False).show(paint('x', 'red'), final=True)\nassert 'jax' not in sys.modules"
  assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"x\n"


def test_a_table_has_columns_as_wide_as_their_longest_cell():
  rows = [("task", "rows", "score"), ("snli", "2,000", "90.1"), ("rte", "277", "")]
  assert table(rows, right=(1, 2)) == "task   rows  score\nsnli  2,000   90.1\nrte     277"
  assert table(rows, indent="  ") == "  task  rows   score\n  snli  2,000  90.1\n  rte   277"


def test_durations():
  assert [duration(s) for s in (5, 200, 3720, -1)] == ["5s", "3m20s", "1h02m", "0s"]
  assert [duration(s, spelled=True) for s in (5, 200, 3720)] == ["5 s", "3 min 20 s", "1 h 02 min"]


def test_sizes_of_files_and_of_memory():
  assert [byte_size(n) for n in (512, 2_500, 3_000_000, 10**12)] == ["512 bytes", "2.5 kB", "3.0 MB", "1000.0 GB"]
  assert [memory_size(n) for n in (512, 3 * 2**20, 5 * 2**30)] == ["0.5 KiB", "3.0 MiB", "5.0 GiB"]


def test_colors_in_a_terminal_only(monkeypatch):
  monkeypatch.setattr(console.sys, "stdout", Terminal())
  monkeypatch.delenv("NO_COLOR", raising=False)
  assert paint("x", "red") == "\033[31mx\033[0m"
  monkeypatch.setenv("NO_COLOR", "1")
  assert paint("x", "red") == "x"
