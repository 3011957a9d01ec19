"""Runs with a teacher: what they save, resume, refuse and show."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from trainers import tiny_settings

import t5like
from t5like.errors import UserError
from t5like.finetuning.distillation import Distillation
from t5like.finetuning.methods import LoRA
from t5like.finetuning.rates import LayerwiseDecay
from t5like.inference.converting import ExportSettings, export_model
from t5like.interop.layouts import flatten
from t5like.models import GPT, TransformerConfig
from t5like.runs.forecast.planned_work import planned_work
from t5like.training.checkpoints import Restore, load_parameters
from t5like.training.checkpoints.arrays import stored_arrays
from t5like.training.records.metrics import read_metrics
from t5like.training.records.model_dir import DATA_SETTINGS

pytestmark = pytest.mark.usefixtures("one_device")

CONFIG = TransformerConfig(
  vocab_size=4224, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_decoder_layers=3, norm="layer", use_bias=True,
  positions="learned", max_positions=16, scale_attention=True, scale_logits=False, scan_layers=True, dropout_rate=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, token_caches):
  experiment = t5like.Experiment(**tiny_settings(tmp_path_factory.mktemp("teacher") / "run", token_caches, GPT(CONFIG)))
  t5like.train(experiment)
  return experiment


@pytest.fixture
def student(teacher, tmp_path):
  def experiment(name="student", config=None, **changes):
    losses = {field: changes.pop(field) for field in ("hidden", "cosine", "soft") if field in changes}
    given = {
      "steps": 4,
      "model_dir": str(tmp_path / name),
      "model": GPT(dataclasses.replace(CONFIG, num_decoder_layers=2, **config or {})),
      "distillation": Distillation(teacher.model_dir, **losses),
    }
    return dataclasses.replace(teacher, **given | changes)

  return experiment


@pytest.mark.slow
def test_a_student_saves_only_itself_and_is_an_ordinary_model(teacher, student):
  """Narrower than its teacher: a projection of its states is saved, too, but is not part of the model."""
  run = student(config={"embed_dim": 4, "head_dim": 2}, hidden=1.0, cosine=0.0, steps=1)
  t5like.train(dataclasses.replace(run, eval_split="validation", eval_loss_period=1))
  folder = Path(run.model_dir)
  stored = stored_arrays(folder / "checkpoints" / "1" / "params")
  assert set(stored) - set(stored_arrays(Path(teacher.model_dir) / "checkpoints" / "1" / "params")) == {
    "distillation/projection"
  }
  assert stored["distillation/projection"].shape == (4, 8)
  card, text = json.loads((folder / "run_card.json").read_text()), (folder / "run_card.txt").read_text()
  assert card["teacher"]["source"] == teacher.model_dir and card["teacher"]["step"] == 1
  assert f"teacher      {teacher.model_dir}, step 1: GPT" in text
  rows = {row["kind"]: row for row in read_metrics(folder)}
  assert rows["train"]["soft_loss"] > 0 and rows["train"]["hidden_loss"] > 0
  assert rows["eval_loss/novels"]["loss"] > 0 and "soft_loss" not in rows["eval_loss/novels"]
  loaded = t5like.load(run.model_dir)
  assert "distillation" not in loaded.params and loaded.module.config.num_decoder_layers == 2
  export_model(ExportSettings(run.model_dir, folder.parent / "exported"))
  assert (folder.parent / "exported" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_student_may_go_on_with_a_teacher_of_another_width(teacher, student, tmp_path):
  """Its projection starts anew, the rest is taken."""
  wide = dataclasses.replace(
    teacher, model=GPT(dataclasses.replace(CONFIG, embed_dim=16, head_dim=8)), model_dir=str(tmp_path / "wide")
  )
  t5like.train(wide)
  run = student(config={"embed_dim": 4, "head_dim": 2}, hidden=1.0, cosine=0.0, steps=1)
  t5like.train(run)
  losses = dataclasses.replace(run.distillation, teacher=wide.model_dir)
  t5like.train(dataclasses.replace(run, distillation=losses, init_from=run.model_dir, model_dir=str(tmp_path / "on")))
  stored = stored_arrays(tmp_path / "on" / "checkpoints" / "1" / "params")
  assert stored["distillation/projection"].shape == (4, 16)


@pytest.mark.slow
def test_layers_of_a_student_may_have_rates_and_a_resumed_run_tells_what_changed(teacher, student, capsys):
  run = student(steps=1, layer_rates=LayerwiseDecay(0.5))
  t5like.train(run)
  assert "rates by LayerwiseDecay" in (Path(run.model_dir) / "run_card.txt").read_text()
  more = {"distillation": dataclasses.replace(run.distillation, temperature=4.0), "steps": 2}
  t5like.train(dataclasses.replace(run, **more))
  said = "".join(capsys.readouterr())
  assert "DISTILLATION = " in said and "'temperature': 2.0" in said and "other losses from now on" in said
  assert "TEACHER = " not in said
  settings = json.loads((Path(run.model_dir) / DATA_SETTINGS).read_text())
  assert settings["TEACHER"].startswith("step 1, ")


@pytest.mark.slow
def test_a_student_of_chosen_layers_resumes_bit_for_bit(teacher, student):
  run = student(init_from=teacher.model_dir, restore=Restore(layers=(0, 2)))
  t5like.train(dataclasses.replace(run, steps=2))
  assert "layers 0, 2 of 3" in (Path(run.model_dir) / "run_card.txt").read_text()
  t5like.train(run)
  whole = dataclasses.replace(run, model_dir=f"{run.model_dir}_whole")
  t5like.train(whole)
  one, two = (flatten(load_parameters(Path(r.model_dir), 4)) for r in (run, whole))
  assert all(one[path].tobytes() == two[path].tobytes() for path in two)
  # A run without the teacher can start from it.
  alone = dict(distillation=None, init_from=run.model_dir, restore=Restore(), model_dir=f"{run.model_dir}_2")
  t5like.train(dataclasses.replace(run, **alone))


def test_the_plan_counts_the_teachers_forward_pass_and_parameters(teacher, student):
  (work,), (alone,), (teaching,) = map(planned_work, (student(), student(distillation=None), teacher))
  flops = work.flops_by_part()
  assert flops["teacher"] == sum(teaching.flops_by_part().values()) // 3
  assert sum(flops.values()) - flops["teacher"] == sum(alone.flops_by_part().values())
  sizes = {name: sum(int(np.prod(x.shape)) for x in flatten(w.state.params).values()) for name, w in (
    ("both", work), ("alone", alone), ("teacher", teaching)
  )}  # fmt: skip
  assert sizes["both"] == sizes["alone"] + sizes["teacher"]


def test_what_does_not_fit_is_refused_before_anything_is_compiled(teacher, student, tmp_path):
  for changes, message in (
    ({"config": {"embed_dim": 4, "head_dim": 2}}, "embed_dim is 4 in the student and 8 in the teacher"),
    ({"config": {"vocab_size": 4352}}, "vocab_size is 4352"),
    ({"vocabulary": "byte"}, "the teacher has another vocabulary"),
    ({"lengths": {"inputs": 32}, "config": {"max_positions": 64}}, "too long for a model with 16"),
    ({"trainable": LoRA(), "init_from": teacher.model_dir}, "LoRA and distillation cannot be combined"),
    ({"distillation": Distillation(str(tmp_path / "nowhere"))}, "nowhere"),
  ):
    with pytest.raises(UserError, match=message):
      t5like.train(student(**changes))
