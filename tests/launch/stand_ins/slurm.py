"""Stands in for srun, scancel and scontrol: `slurm.py srun ...` really runs the command, as two tasks."""

import os
import signal
import sys

from tool import FOLDER, Call

TASKS = 2


def srun(call: Call) -> None:
  import subprocess

  tasks = []
  for task in range(TASKS):
    env = {
      **os.environ,
      "SLURM_PROCID": str(task),
      "SLURM_LOCALID": str(task),
      "T5LIKE_STAND_IN_HOST": f"node-w-{task}",
    }
    tasks.append(subprocess.Popen(call.arguments, env=env))
  (FOLDER / "tasks").write_text(" ".join(str(task.pid) for task in tasks))
  sys.exit(max(task.wait() for task in tasks))  # the highest, as srun does


def scancel(call: Call) -> None:
  assert call.arguments == [os.environ["SLURM_JOB_ID"]]
  for task in (FOLDER / "tasks").read_text().split():
    os.kill(int(task), signal.Signals[f"SIG{call.flag('--signal')}"])


def scontrol(call: Call) -> None:
  assert call.arguments == ["requeue", os.environ["SLURM_JOB_ID"]]


if __name__ == "__main__":
  called = Call("slurm", sys.argv[1:], runs_command=sys.argv[1] == "srun")
  {"srun": srun, "scancel": scancel, "scontrol": scontrol}[called.name](called)
