"""A checkpoint that is loaded and saved again has the same bits."""

import json
from pathlib import Path

from safetensors.numpy import load_file

from t5like.interop import huggingface


def round_trip(folder: Path, target: Path, scan_layers: bool) -> huggingface.Imported:
  """Loads a Hugging Face folder, saves it to `target`, and compares all tensors; returns what was loaded."""
  imported = huggingface.load(folder, scan_layers=scan_layers)
  assert imported.report.missing == imported.report.unexpected == []
  huggingface.save(target, imported.model, imported.params, imported.model_type)
  before, after = load_file(folder / "model.safetensors"), load_file(target / "model.safetensors")
  assert sorted(before) == sorted(after)
  for name, tensor in before.items():
    assert tensor.dtype == after[name].dtype and tensor.tobytes() == after[name].tobytes(), name
  return imported


def check_round_trip(theirs: Path, ours: Path, scan_layers: bool, changed=("dtype",), not_read=()) -> None:
  """Also compares config.json, but for the fields `changed`, the names of tensors, but for `not_read`, and models."""
  imported = round_trip(theirs, ours, scan_layers)
  old, new = (json.loads((folder / "config.json").read_text()) for folder in (theirs, ours))
  differing = {field for field, value in new.items() if field in old and value != old[field]}
  assert differing <= set(changed), differing
  rules = huggingface.tensor_rules(imported.model)  # the names by which peft finds matrices
  assert {rule.theirs for rule in rules} == set(load_file(theirs / "model.safetensors")) - set(not_read)
  assert huggingface.load(ours, scan_layers=scan_layers).model == imported.model
