"""How the end of a process is described, and processes that do not run a script again."""

import signal
import subprocess
import sys

import pytest

from t5like.files.child_processes import ending


@pytest.mark.parametrize(
  ("status", "text"),
  [
    (-signal.SIGKILL, "SIGKILL, possibly out of memory"),
    (-signal.SIGTERM, "SIGTERM"),
    (3, "status 3"),
    (0, "status 0"),
  ],
)
def test_a_signal_is_named(status, text):
  assert ending(status) == text


def test_a_process_does_not_run_the_script_again(tmp_path):
  script = tmp_path / "script.py"  # without `if __name__ == "__main__":`
  script.write_text(
    "import multiprocessing\n"
    "from t5like.files.child_processes import without_main\n"
    "print('script', flush=True)\n"
    "process = multiprocessing.get_context('spawn').Process(target=print, args=('process',))\n"
    "with without_main():\n"
    "  process.start()\n"
    "process.join()\n"
    "print(process.exitcode, __import__('sys').modules['__main__'].__file__)\n"
  )
  done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
  assert done.stdout.split() == ["script", "process", "0", str(script)], done.stderr
