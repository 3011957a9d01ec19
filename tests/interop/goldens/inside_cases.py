"""Folders of tiny models whose attention weights and states make_inside_goldens.py has computed with transformers."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from infer_models import folder_of, write_tokenizer
from safetensors.numpy import save_file
from zoo_weights import draw

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


class Case(NamedTuple):
  """A model of tests/data/golden and the token ids that it reads, special tokens included."""

  kind: str  # the class in transformers
  file: str  # a folder, or an .npz file with descriptions of several models
  special: dict[str, int]
  rows: list[tuple[list[int], list[int]]]  # of the encoder or the only stack, and of the decoder


_BERT, _ALBERT = dict(eos=2, cls=1, sep=2, mask=3), dict(eos=3, cls=2, sep=3, mask=4)
CASES = {
  "t5": Case(
    "T5ForConditionalGeneration",
    "t5_1_1",
    dict(eos=41),
    [([42, 46, 30, 28, 11, 10, 41], [0, 16, 29, 19]), ([45, 55, 41], [0, 8])],
  ),
  "bert": Case("BertForPreTraining", "bert", _BERT, [([1, 7, 9, 30, 12, 2], []), ([1, 11, 2], [])]),
  "gpt2": Case("GPT2LMHeadModel", "gpt2", dict(eos=41), [([42, 46, 30, 28, 11], []), ([45, 55], [])]),
  "bart": Case(
    "BartForConditionalGeneration",
    "bart/models.npz",
    dict(pad=1, bos=0, cls=0, eos=2, sep=2, mask=28),
    [([0, 7, 9, 21, 12, 2], [2, 0, 16, 8, 19]), ([0, 11, 2], [2, 0, 5])],
  ),
  "llama": Case(
    "LlamaForCausalLM", "decoders/llama.npz", dict(bos=1, eos=2), [([5, 9, 7, 20, 3, 11], []), ([4, 8], [])]
  ),
  "albert": Case("AlbertForMaskedLM", "zoo/albert.npz", _ALBERT, [([2, 7, 9, 11, 12, 3], []), ([2, 8, 3], [])]),
  "deberta": Case("DebertaV2ForMaskedLM", "zoo/deberta.npz", _BERT, [([1, 7, 9, 11, 12, 2], []), ([1, 8, 2], [])]),
  "convolution": Case(
    "DebertaV2ForQuestionAnswering-10", "zoo/deberta.npz", _BERT, [([1, 7, 9, 11, 12, 2], []), ([1, 8, 2], [])]
  ),
}  # fmt: skip


def make_folder(name: str, folder: Path) -> Path:
  """Writes the folder of a case, as it would be downloaded."""
  case = CASES[name]
  if not case.file.endswith(".npz"):
    return folder_of(case.file, folder, **case.special)
  with np.load(GOLDEN / case.file) as arrays:
    described = json.loads(arrays[f"{case.kind}/description"].tobytes())
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(described["config"]))
  tensors = draw(described["tensors"], described["seed"])
  if "final_logits_bias" in tensors:
    tensors["final_logits_bias"][:] = 0
  save_file(tensors, folder / "model.safetensors")
  write_tokenizer(folder, described["config"]["vocab_size"], **case.special)
  return folder
