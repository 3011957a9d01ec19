"""Helpers of the launch tests: stand-ins for tools on the PATH, and a user's project to send to workers."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"


def put_on_path(folder: Path, tools: dict[str, list]) -> None:
  """Creates commands in `folder` that run the given command lines; Python ones skip site packages to start fast."""
  folder.mkdir(exist_ok=True)
  for name, words in tools.items():
    if Path(words[0]).suffix == ".py":
      words = [sys.executable, "-S", "-E", *words]
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    (folder / name).chmod(0o755)


# A user's folder: gin files that include each other and shipped ones, task modules of three kinds, a vocabulary.
PROJECT = {
  "my conf/run.gin": (
    "# include 'not sent'\ninclude 'my conf/shared.gin'\ninclude 'models/t5/tiny.gin'\nimport my_objectives\n"
    "TASK_MODULES = [\n  'my_tasks',\n  'pack.age.tasks',  # 'not sent'\n]\n"
  ),
  "my conf/shared.gin": 'include "it\'s $HOME/deep.gin"\n',
  "it's $HOME/deep.gin": "SEED = 3\n",
  "my_objectives.py": "",
  "my_tasks.py": "import os\nfrom helper import ready\nassert ready\n",
  "helper.py": "ready = True\n",
  "pack/age/__init__.py": "",
  "pack/age/tasks.py": "from . import sibling\n",
  "pack/age/sibling.py": "",
  "pack/age/names.json": "[]",
  "my words/vocabulary 1.model": "\0\1\xff",
}
NOT_SENT = {"other.gin": "not sent", "pack/other.py": "not sent", "pack/age/__pycache__/tasks.pyc": "not sent"}
PROJECT_OPTIONS = ["--gin_file=my conf/run.gin", "--gin.MODEL_DIR=gs://bucket/run"]


def make_project(folder: Path) -> Path:
  for name, text in {**PROJECT, **NOT_SENT}.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
  return folder


def files_in(folder: Path) -> dict[str, str]:
  return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_t5like_finds_the_project(folder: Path) -> None:
  """Reads the gin file and imports the task modules in `folder`, with the code of `t5like train`."""
  program = """
import sys; sys.path.append(".")
from t5like.configuration.search_path import search_path
from t5like.configuration.statements import Permissions, import_module, read_file
read = {s.macro_name: s.value for s in read_file("my conf/run.gin", Permissions(search_path())) if hasattr(s, "value")}
assert read["SEED"] == 3
for module in read["TASK_MODULES"]: import_module(module, "here")
"""
  environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
  done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
