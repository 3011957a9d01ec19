"""Hugging Face folders for the tests of `t5like infer`: golden weights with a vocabulary of words, a token each."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

GOLDEN = Path(__file__).parent / "data" / "golden"
IDS = 60


def golden(name: str) -> dict:
  """What transformers computed for this model: see make_infer_goldens.py."""
  return json.loads((GOLDEN / "infer" / f"{name}.json").read_text())


def words(ids) -> str:
  return " ".join(f"w{i}" for i in ids)


def folder_of(name: str, folder: Path, **special: int) -> Path:
  """The golden model of that name as it would be downloaded; `special` says which ids are eos, cls, sep, mask."""
  folder.mkdir(parents=True)
  for path in (GOLDEN / name).iterdir():
    if path.name != "outputs.npz":
      shutil.copy(path, folder)
  write_tokenizer(folder, IDS, **special)
  return folder


def golden_folders(folder: Path) -> dict[str, Path]:
  """A golden model of each kind in `folder`."""
  t5, gpt2, bert = golden("t5_1_1"), golden("gpt2"), golden("bert")
  marks = {kind: bert[kind] for kind in ("cls", "sep", "mask")}
  return {
    "t5": folder_of("t5_1_1", folder / "t5", eos=t5["eos"]),
    "gpt2": folder_of("gpt2", folder / "gpt2", eos=gpt2["eos"]),
    "bert": folder_of("bert", folder / "bert", eos=bert["sep"], **marks),
  }


def write_tokenizer(folder: Path, ids: int, **special: int) -> None:
  """Writes a vocabulary of the words w0, w1, ...; the last one stands for unknown words."""
  tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(ids)}, unk_token=f"w{ids - 1}"))
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.decoder = decoders.Fuse()
  tokenizer.decoder = decoders.Sequence([decoders.Replace("w", " w"), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
  tokenizer.save(str(folder / "tokenizer.json"))
  named = {f"{kind}_token": f"w{token}" for kind, token in {"pad": 0, "unk": ids - 1, **special}.items()}
  (folder / "tokenizer_config.json").write_text(json.dumps(named))


def read(path: Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]
