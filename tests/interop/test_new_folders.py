"""Folders of converted and saved models are complete or not there, and an interrupted command can be repeated."""

import shutil

import pytest
from full_disk import full_disk
from gcs_server import reached_from_here, serving
from infer_models import GOLDEN, folder_of, golden

from t5like.errors import UserError
from t5like.inference import load
from t5like.inference.converting import ImportSettings, import_checkpoint
from t5like.inference.tuned_conversions import TunedSettings, from_peft, to_peft
from t5like.interop.new_folders import complete_folder, new_folder

pytestmark = pytest.mark.usefixtures("one_device")
FROM_PEFT = {"base.json", "checkpoints", "config.gin", "vocabulary"}
HUGGING_FACE = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def actions(tmp_path_factory, use_devices):
  """Functions that write a folder, each with the names in it."""
  top = tmp_path_factory.mktemp("models")
  with use_devices(1):
    base = folder_of("gpt2", top / "gpt2", eos=golden("gpt2")["eos"])
    lora, model = GOLDEN / "peft" / "gpt2_lora", load(base)
    from_peft(lora, base, top / "tuned")
    return {
      "from_hf": (
        lambda target: import_checkpoint(ImportSettings(base, target)),
        {"checkpoints", "config.gin", "conversion.txt", "vocabulary"},
      ),
      "save": (model.save, {"checkpoints", "config.gin", "vocabulary"}),
      "save_hf": (model.save_hf, HUGGING_FACE),
      "embedder": (
        model.pooled().save_hf,
        HUGGING_FACE | {"1_Pooling", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"},
      ),
      "from_peft": (lambda target: from_peft(lora, base, target), FROM_PEFT),
      "to_peft": (
        lambda target: to_peft(TunedSettings(top / "tuned", target)),
        {"adapter_config.json", "adapter_model.safetensors"},
      ),
    }


@pytest.mark.parametrize("name", ["from_hf", "save", "save_hf", "embedder", "from_peft", "to_peft"])
def test_a_full_disk_leaves_nothing_and_the_same_command_succeeds(actions, name, tmp_path, capfd):
  action, names = actions[name]
  with full_disk(400), pytest.raises(UserError) as error:
    action(tmp_path / "new")
  assert error.value.what == "cannot write the model"
  assert error.value.lines == {
    "folder": str(tmp_path / "new"), "try": "free some space, or another folder", "because": "File too large"
  }  # fmt: skip
  assert list(tmp_path.iterdir()) == []
  killed = tmp_path / "new.t5like-unfinished"
  killed.mkdir()
  (killed / "half.safetensors").write_bytes(b"half")
  killed.with_name(f"{killed.name}.lock").write_text("{}")
  action(tmp_path / "new")
  assert [path.name for path in tmp_path.iterdir()] == ["new"]
  assert {path.name for path in (tmp_path / "new").iterdir()} == names


def test_an_empty_folder_that_is_there_is_filled_and_not_replaced(actions, tmp_path):
  target = tmp_path / "new"
  target.mkdir(mode=0o700)
  before = target.stat()
  with pytest.raises(RuntimeError), complete_folder(target) as folder:
    (folder / "a").touch()
    raise RuntimeError
  assert list(target.iterdir()) == []
  (target / ".t5like-unfinished").mkdir()
  (target / ".t5like-unfinished" / "half.safetensors").write_bytes(b"half")
  save, names = actions["save"]
  save(target)
  assert {path.name for path in target.iterdir()} == names
  assert (target.stat().st_ino, target.stat().st_mode) == (before.st_ino, before.st_mode)
  assert load(target).vocabulary.path.is_relative_to(target / "vocabulary")
  with pytest.raises(UserError, match="is not empty"):
    new_folder(target)


def test_a_saved_model_finds_its_vocabulary(actions, tmp_path):
  actions["from_hf"][0](tmp_path / "new")
  shutil.move(tmp_path / "new", tmp_path / "moved")
  text = (tmp_path / "moved" / "config.gin").read_text()
  assert f"VOCABULARY = '{tmp_path}/new/vocabulary" in text and f"MODEL_DIR = '{tmp_path}/new'" in text
  assert "unfinished" not in text


def test_one_process_writes_a_folder(tmp_path):
  with complete_folder(tmp_path / "new") as folder:
    (folder / "a").write_text("first")
    with pytest.raises(UserError, match="another process is writing"), complete_folder(tmp_path / "new"):
      pass
  assert [(path.name, path.read_text()) for path in (tmp_path / "new").iterdir()] == [("a", "first")]
  assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_folder_on_a_store(actions, monkeypatch, tmp_path):
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    save, names = actions["save_hf"]
    save("gs://bucket/new")
    assert list(store.buckets["bucket"])[-1] == "new/config.json"  # without it, a folder cannot be loaded
    assert {name.removeprefix("new/") for name in store.buckets["bucket"]} == names
    for in_place in (False, True):
      with pytest.raises(RuntimeError), complete_folder(new_folder("gs://bucket/other"), in_place) as folder:
        (folder / "a").write_bytes(b"1")
        raise RuntimeError
      assert {name.partition("/")[0] for name in store.buckets["bucket"]} == {"new"}
