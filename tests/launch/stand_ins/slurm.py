"""A stand-in for Slurm's commands: `slurm.py srun ...` runs the command as two tasks.

With T5LIKE_STAND_IN_ALONE the second node does not share the file system: its tasks start in another folder.
"""

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
    elsewhere = "/" if task == 1 and os.environ.get("T5LIKE_STAND_IN_ALONE") else None
    tasks.append(subprocess.Popen(call.arguments, env=env, cwd=elsewhere))
  (FOLDER / "tasks").write_text(" ".join(str(task.pid) for task in tasks))
  sys.exit(max(task.wait() for task in tasks))  # like srun


def scancel(call: Call) -> None:
  assert call.arguments == [os.environ["SLURM_JOB_ID"]]
  for task in (FOLDER / "tasks").read_text().split():
    os.kill(int(task), signal.Signals[f"SIG{call.flag('--signal')}"])


def scontrol(call: Call) -> None:
  assert call.arguments == ["requeue", os.environ["SLURM_JOB_ID"]]


if __name__ == "__main__":
  called = Call("slurm", sys.argv[1:], runs_command=sys.argv[1] in ("srun", "sbatch"))
  {"sbatch": lambda call: None, "srun": srun, "scancel": scancel, "scontrol": scontrol}[called.name](called)
