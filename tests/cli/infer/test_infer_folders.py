"""Hugging Face folders: EOS ids in configurations, tokenizers with [CLS], and unexpected tensors."""

import json

import numpy as np
import pytest
from infer_models import folder_of
from safetensors.numpy import load_file, save_file

from t5like.inference import load


@pytest.mark.parametrize(
  "generation, config, expected",
  [({"eos_token_id": [3, 9]}, 5, {3, 9}), ({}, 5, {5}), (None, None, set())],
)
def test_generation_config_takes_precedence_over_config(generation, config, expected, tmp_path):
  folder = folder_of("gpt2", tmp_path / "gpt2", eos=5)
  fields = json.loads((folder / "config.json").read_text()) | {"eos_token_id": config}
  (folder / "config.json").write_text(json.dumps(fields))
  (folder / "generation_config.json").unlink(missing_ok=True)
  if generation is not None:
    (folder / "generation_config.json").write_text(json.dumps(generation))
  assert load(folder).source.configured_eos_ids() == expected


@pytest.mark.parametrize("special, start", [(dict(eos=1), None), (dict(eos=1, cls=4, sep=1), 4)])
def test_a_t5_whose_tokenizer_starts_texts_with_cls_gets_it(special, start, tmp_path):
  """CodeT5, and models with BERT's vocabulary; checked with transformers."""
  form = load(folder_of("t5_1_0", tmp_path / "t5", **special)).prompt_form
  assert form.tokens([7, 8]) == [*([] if start is None else [start]), 7, 8, 1]


def test_unexpected_tensors_are_reported(tmp_path, capsys):
  folder = folder_of("gpt2", tmp_path / "gpt2", eos=5)
  load(folder)
  assert "unexpected" not in capsys.readouterr().err
  file = folder / "model.safetensors"
  save_file(load_file(file) | {"score.weight": np.zeros((2, 4), np.float32)}, file)
  load(folder)
  assert "ignored 1 unexpected tensors" in (output := capsys.readouterr().err) and "score.weight" in output
