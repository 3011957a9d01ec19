"""Tasks of a module that the user's program has imported: a run finds them, and its configuration names the module."""

import dataclasses
import importlib
import sys

import t5like
from t5like.runs.run_data import note_missing_modules, with_imported_modules

MODULE = """
from t5like.tasks.library.corpora import register_corpus

register_corpus("imported_corpus", {"train": "lines.txt"})
"""


def test_the_configuration_of_a_run_names_the_imported_module(tmp_path, monkeypatch, capsys):
  (tmp_path / "module_of_a_run.py").write_text(MODULE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  importlib.import_module("module_of_a_run")
  files = ["models/t5/tiny.gin", "runs/pretrain.gin"]
  given = t5like.read_experiment(files, TASK="imported_corpus_span_corruption", MODEL_DIR=str(tmp_path / "run"))
  found = with_imported_modules(given)
  assert found.task_modules == ["module_of_a_run"]
  assert found.config_text == f"{given.config_text}\n\ntrain.task_modules = ['module_of_a_run']\n"
  assert with_imported_modules(found) is found  # what is given is used
  note_missing_modules(dataclasses.replace(found, task_modules=["module_of_a_run", "module_elsewhere.tasks"]))
  (note,) = capsys.readouterr().out.splitlines()
  assert note.startswith("note: no task module 'module_elsewhere.tasks' here")
  shipped = t5like.read_experiment(files, TASK="novels_span_corruption", MODEL_DIR=str(tmp_path / "run"))
  assert with_imported_modules(shipped) is shipped
  sys.modules.pop("module_of_a_run")
