"""A checkpoint that is loaded and saved again has the same bits."""

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
