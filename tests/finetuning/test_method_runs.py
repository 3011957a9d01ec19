"""Runs with methods: what they save, resume, refuse and load."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from trainers import finish, parameters, start, start_pod, tiny_settings

import t5like
from t5like.cli.main import main
from t5like.errors import UserError
from t5like.finetuning.methods import IA3, LoRA, PrefixTuning, PromptTuning, QLoRA
from t5like.inference.tuned_conversions import TunedSettings, from_peft, to_peft
from t5like.interop.layouts import flatten
from t5like.models import GPT, TransformerConfig
from t5like.training.checkpoints import load_parameters
from t5like.training.checkpoints.arrays import stored_arrays

pytestmark = pytest.mark.usefixtures("one_device")

GPT2 = TransformerConfig(
  vocab_size=4224, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_decoder_layers=2, norm="layer", use_bias=True,
  positions="learned", max_positions=64, scale_attention=True, scale_logits=False, scan_layers=True, dropout_rate=0.1,
)  # fmt: skip
TEXTS = ["It is a truth", "Call me"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, token_caches):
  """A base of one step."""
  experiment = t5like.Experiment(**tiny_settings(tmp_path_factory.mktemp("base") / "run", token_caches, GPT(GPT2)))
  t5like.train(experiment)
  return experiment


@pytest.fixture
def tuned(base, tmp_path):
  def experiment(method, name="tuned", **changes):
    given = {"steps": 4, "model_dir": str(tmp_path / name), "init_from": base.model_dir, "trainable": method}
    return dataclasses.replace(base, **given | changes)

  return experiment


def same(one, two):
  return jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), one, two))


def test_a_lora_run_saves_and_resumes_what_it_trains(base, tuned, capsys):
  method = LoRA(rank=2, dropout=0.1)
  whole = t5like.train(tuned(method, "whole", checkpoint_period=2))
  card = capsys.readouterr().out
  assert "LoRA of rank 2 on 4 matrices: 128 of" in card and "decoder/layers_*/attention/query/lora_a  2 x 16" in card
  folder = Path(tuned(method).model_dir)
  shutil.copytree(whole.model_dir, folder)
  shutil.rmtree(folder / "checkpoints/4")  # as if it had ended after step 2
  t5like.train(tuned(method))
  assert "its own checkpoint of step 2" in capsys.readouterr().out
  assert same(load_parameters(whole.model_dir), load_parameters(folder))
  stored = stored_arrays(folder / "checkpoints/4/params")
  assert sum(leaf.size for leaf in stored.values()) == 128 and all("lora" in path for path in stored)
  moments = stored_arrays(folder / "checkpoints/4/training")
  assert all("lora" in path for path, leaf in moments.items() if leaf.size > 1)
  # The base was not touched, and the loaded model is base + update.
  model, plain = t5like.load(folder), t5like.load(base.model_dir)
  ours, theirs = flatten(jax.device_get(model.params)), flatten(jax.device_get(plain.params))
  assert all(np.array_equal(ours[path], x) for path, x in theirs.items()) and len(ours) == len(theirs) + 4
  assert all(np.any(ours[path]) for path in ours.keys() - theirs.keys())


@pytest.mark.slow
def test_a_lora_run_is_merged_and_goes_to_peft_and_back(base, tuned):
  folder = Path(t5like.train(tuned(LoRA(rank=2, dropout=0.1), steps=2)).model_dir)
  model = t5like.load(folder)
  tuned_scores = model.score(TEXTS)
  merged = model.save(folder.parent / "merged")
  np.testing.assert_allclose(t5like.load(merged).score(TEXTS), tuned_scores, rtol=1e-5)
  assert [o.text for o in t5like.load(merged).generate(TEXTS)] == [o.text for o in model.generate(TEXTS)]
  # To peft and back: query and value share GPT-2's c_attn, with twice the rank.
  for number, merges in enumerate((("merge",), ("to_hf", "--merge"))):
    assert main(["convert", merges[0], str(folder), str(folder.parent / f"{number}"), *merges[1:]]) == 0
    np.testing.assert_allclose(t5like.load(folder.parent / f"{number}").score(TEXTS), tuned_scores, rtol=1e-5)
  to_peft(TunedSettings(folder, folder.parent / "peft"))
  again = from_peft(folder.parent / "peft", base.model_dir, folder.parent / "again").target
  np.testing.assert_allclose(t5like.load(again).score(TEXTS), tuned_scores, rtol=1e-5)
  with pytest.raises(UserError, match="is a complete model"):
    to_peft(TunedSettings(base.model_dir, folder.parent / "none"))


@pytest.mark.slow
def test_another_base_is_refused(base, tuned, tmp_path):
  experiment = tuned(LoRA(rank=2), steps=1)
  t5like.train(experiment)
  other = dataclasses.replace(base, model_dir=str(tmp_path / "other"), seed=1)
  t5like.train(other)
  with pytest.raises(UserError, match="another base"):
    t5like.load(experiment.model_dir, base=other.model_dir).params  # noqa: B018
  with pytest.raises(UserError, match="another model"):  # the same directory with another INIT_FROM
    t5like.train(dataclasses.replace(experiment, init_from=other.model_dir, steps=2))
  with pytest.raises(UserError, match="holds only what was trained"):
    t5like.train(tuned(LoRA(rank=2), "second", init_from=experiment.model_dir))
  recorded = json.loads((Path(experiment.model_dir) / "base.json").read_text())
  assert recorded["base"] == base.model_dir


def test_a_method_needs_a_base(tuned):
  with pytest.raises(UserError, match="INIT_FROM names none"):
    t5like.train(tuned(LoRA(), init_from=None))


@pytest.mark.slow
def test_adapters_share_a_base_and_are_switched_by_name(base, tuned):
  runs = {"lora": tuned(LoRA(rank=2), "lora", steps=2), "prompt": tuned(PromptTuning(length=3), "prompt", steps=2)}
  for experiment in runs.values():
    t5like.train(experiment)
  folders = {name: experiment.model_dir for name, experiment in runs.items()}
  model = t5like.load(base.model_dir, adapters=folders)
  plain = model.score(TEXTS)
  for name, folder in folders.items():
    np.testing.assert_allclose(model.use(name).score(TEXTS), t5like.load(folder).score(TEXTS), rtol=1e-5)
    assert model.use(name) is model.use("lora").use(name)
    kernel = lambda tree: tree["decoder"]["layers"]["mlp"]["wi"]["kernel"]  # noqa: E731
    assert kernel(model.use(name).params) is kernel(model.params)  # one copy on the devices
  assert model.use("prompt").positions == 61
  assert model.use("lora").use(None).score(TEXTS) == plain
  with pytest.raises(UserError, match="unknown adapter 'lore'"):
    model.use("lore")
  with pytest.raises(UserError, match="complete model"):
    t5like.load(base.model_dir, adapters={"base": base.model_dir}).use("base")


@pytest.mark.slow
@pytest.mark.parametrize(
  "method", [QLoRA(rank=2), PrefixTuning(length=3, hidden=4), IA3()], ids=["qlora", "prefix", "ia3"]
)
def test_other_methods_resume_exactly_and_answer(method, tuned):
  """As LoRA does above; QLoRA's base is in 4 bits."""
  whole = t5like.train(tuned(method, "whole"))
  for steps in (2, 4):
    t5like.train(tuned(method, steps=steps))
  folder = Path(tuned(method).model_dir)
  assert same(load_parameters(whole.model_dir), load_parameters(folder))
  model = t5like.load(folder)
  assert np.isfinite(model.score(TEXTS)).all() and len(model.generate(TEXTS)) == 2
  if not isinstance(method, PrefixTuning):  # a prefix stays beside the base
    merged = t5like.load(model.save(folder.parent / "merged"))
    np.testing.assert_allclose(merged.score(TEXTS), model.score(TEXTS), rtol=1e-5)


@pytest.mark.slow
def test_two_hosts_train_what_one_does(base, tmp_path):
  """LoRA on a base that is sharded over the devices of two processes; the checkpoint is that of one process."""
  arguments = [
    "train", f"--gin_file={base.model_dir}/config.gin", "--gin.train.trainable=@LoRA()", "--gin.LoRA.rank=2",
    f"--gin.train.init_from='{base.model_dir}'", "--gin.train.steps=3", "--gin.MESH.fsdp=2",
  ]  # fmt: skip
  finish(start_pod([*arguments, f"--gin.train.model_dir='{tmp_path}/two'"], hosts=2))
  finish([start([*arguments, f"--gin.train.model_dir='{tmp_path}/one'"], devices=2)])
  one, two = parameters(tmp_path / "one"), parameters(tmp_path / "two")
  assert one.keys() == two.keys() and all("lora" in path for path in one)
  for path, value in one.items():
    np.testing.assert_allclose(two[path], value, rtol=1e-4, atol=1e-6)
