"""Distillation: its losses by hand, what a teacher must be like, and which parameters it reaches."""

import dataclasses
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.data.layouts import blank
from t5like.errors import UserError
from t5like.finetuning.distillation import LEARNED, TEACHER, Distillation, WithTeacher, losses
from t5like.interop.layouts import flatten
from t5like.models import BERT, ELECTRA, GPT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, SpanHead, attach_head
from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig
from t5like.objectives import Lengths
from t5like.training.losses import LossSettings
from t5like.training.optimizers.selection import Selection
from t5like.training.state import TrainState
from t5like.training.step import eval_step, loss_and_gradients

SIZE = dict(vocab_size=30, embed_dim=8, mlp_dim=12, num_heads=2, norm="layer", use_bias=True, positions="learned",
            max_positions=12, scale_attention=True, scale_logits=False)  # fmt: skip
BERT_CONFIG = TransformerConfig(
  **SIZE, num_encoder_layers=4, num_token_types=2, embedding_norm=True, norm_position="post", mlm_head=True,
  final_dropout=False,
)  # fmt: skip
ALL = dict(soft=1.5, hard=0.5, cosine=2.0, attention=3.0, hidden=0.25, embedding=0.75)


def bert(layers, **changes):
  return BERT(dataclasses.replace(BERT_CONFIG, num_encoder_layers=layers, **changes))


def initial(model, batch, seed=0):
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))["params"]
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.3, x.shape).astype(x.dtype), shapes)


@pytest.fixture(scope="module")
def batch():
  """Two rows, of seven and four tokens, with two and one targets."""
  rng = np.random.default_rng(1)
  valid = np.arange(7)[None] < np.array([[7], [4]])
  weights = np.zeros((2, 7), np.float32)
  weights[0, [1, 4]], weights[1, 2] = 1.0, 1.0
  return {
    "encoder_input_tokens": np.where(valid, rng.integers(5, 30, (2, 7)), 0).astype(np.int32),
    "encoder_target_tokens": rng.integers(5, 30, (2, 7)).astype(np.int32),
    "encoder_loss_weights": weights,
    "encoder_segment_ids": valid.astype(np.int32),
  }


def compiled(function):
  return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def taught(batch):
  """A narrow student of one layer with a teacher of two, all losses, and (loss, metrics, gradients) of a batch."""
  student = bert(1, embed_dim=6, head_dim=3)
  model = WithTeacher(student, bert(2), Distillation("there", **ALL | {"cosine": 0.0}))
  params = initial(model, batch)

  def run(params, microbatches):
    state = TrainState(jnp.int32(0), params, (), jnp.uint32(0))
    return loss_and_gradients(model, LossSettings(z_loss=0.0, microbatches=microbatches), state, batch)

  return types.SimpleNamespace(model=model, params=params, run=compiled(lambda params: run(params, 1)), plain=run)


def test_soft_targets_cosines_and_differences_by_hand():
  rng = np.random.default_rng(0)
  student, teacher = rng.normal(size=(2, 3, 5)).astype(np.float32), rng.normal(size=(2, 3, 5)).astype(np.float32)
  softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
  p, q = softmax(student / 2.0), softmax(teacher / 2.0)
  np.testing.assert_allclose(losses.soft_targets(student, teacher, 2.0), 4 * (q * np.log(q / p)).sum(-1), rtol=1e-5)
  cosine = (student * teacher).sum(-1) / np.linalg.norm(student, axis=-1) / np.linalg.norm(teacher, axis=-1)
  np.testing.assert_allclose(losses.cosine_distance(student, teacher), 1 - cosine, rtol=1e-5)
  np.testing.assert_allclose(
    losses.squared_difference(student, teacher), ((student - teacher) ** 2).mean(-1), rtol=1e-5
  )
  seen = np.array([[[1, 1, 0]] * 3], bool)
  one, two = rng.normal(size=(2, 1, 4, 3, 3)).astype(np.float32)
  by_hand = ((one - two) ** 2)[..., :2].mean(axis=(1, 3))
  np.testing.assert_allclose(losses.score_difference(one, two, jnp.asarray(seen)), by_hand, rtol=1e-5)


def test_the_loss_of_layers_is_that_of_their_states_and_scores_by_hand(taught, batch):
  """Everything again with the models on their own: states of all layers, and scores from the projections' weights."""
  _, metrics, _ = taught.run(taught.params)
  mine = {name: part for name, part in taught.params.items() if name not in (TEACHER, LEARNED)}
  models = {"student": (taught.model.student, mine), "teacher": (taught.model.teacher, taught.params[TEACHER])}
  real, states, scores = batch["encoder_segment_ids"] > 0, {}, {}
  for name, (model, params) in models.items():
    read = compiled(
      lambda params, model=model: model.apply({"params": params}, batch, True, True, method="hidden_states")
    )
    states[name] = np.asarray(read(params), np.float64)
    layers = [params["encoder"][f"layers_{i}"]["attention"] for i in range(model.config.num_encoder_layers)]
    heads = lambda x, w: (x @ w["kernel"] + w["bias"]).reshape(2, 7, 2, -1)  # noqa: E731
    scores[name] = [
      np.einsum("bqhd,bkhd->bhqk", heads(x, w["query"]), heads(x, w["key"])) / model.config.head_dim**0.5
      for x, w in zip(states[name], layers, strict=False)
    ]
  projected = states["student"] @ np.asarray(taught.params[LEARNED]["projection"], np.float64)
  difference = lambda i, j: ((projected[i] - states["teacher"][j]) ** 2).mean(-1)[real].mean()  # noqa: E731
  np.testing.assert_allclose(metrics["embedding_loss"], difference(0, 0), rtol=1e-4)
  np.testing.assert_allclose(metrics["hidden_loss"], difference(1, 2), rtol=1e-4)
  squares = ((scores["student"][0] - scores["teacher"][1]) ** 2).mean(1)  # [rows, queries, keys]
  attention = np.concatenate([squares[0].mean(-1), squares[1, :4, :4].mean(-1)]).mean()
  np.testing.assert_allclose(metrics["attention_loss"], attention, rtol=1e-4)


def test_the_loss_is_the_weighted_sum_and_trains_the_student_only(taught, batch):
  loss, metrics, gradients = taught.run(taught.params)
  hard = metrics["loss"] / metrics["target_tokens"]
  terms = [ALL[name] * metrics[f"{name}_loss"] for name in ("soft", "attention", "hidden", "embedding")]
  np.testing.assert_allclose(loss, ALL["hard"] * hard + sum(terms), rtol=1e-5)
  assert all(np.abs(x).max() == 0 for x in jax.tree.leaves(gradients[TEACHER]))
  assert np.abs(gradients[LEARNED]["projection"]).max() > 0
  assert all(np.abs(x).max() > 0 for path, x in flatten(gradients["encoder"]).items() if path.endswith("kernel"))


def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it(batch):
  model = WithTeacher(bert(1), bert(1), Distillation("there", **ALL))
  params = initial(bert(1), batch)
  run = compiled(lambda params: model.apply({"params": {**params, TEACHER: params}}, batch, False)["auxiliary"])
  terms = run(params)
  assert set(terms) == {f"{name}_loss" for name in ALL if name != "hard"}
  for term in terms.values():
    np.testing.assert_allclose(term.losses * term.weights, 0.0, atol=1e-5)


def test_microbatches_have_the_same_loss_and_gradients(taught):
  """Rows of different lengths and numbers of targets."""
  loss, _, gradients = taught.run(taught.params)
  split, _, same = compiled(lambda params: taught.plain(params, 2))(taught.params)
  np.testing.assert_allclose(split, loss, rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradients, same)


def test_an_evaluation_is_of_the_student_alone(taught, batch):
  mine = {name: part for name, part in taught.params.items() if name not in (TEACHER, LEARNED)}
  step = lambda model, params: compiled(lambda params: eval_step(model, LossSettings(), params, batch))(params)  # noqa: E731
  student, both = step(taught.model.student, mine), step(taught.model, taught.params)
  assert set(both) == set(student) and both["loss"] == student["loss"]
  hard = taught.run(taught.params)[1]
  np.testing.assert_allclose(hard["loss"], student["loss"], rtol=1e-5)


@pytest.mark.parametrize(
  "family, scan_layers",
  [
    ("gpt", True),
    ("classifier", False),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (("bert", False), ("bert", True), ("gpt", False), ("t5", False), ("t5", True), ("classifier", True))
    ),
  ],
)
def test_every_family_in_both_layouts(family, scan_layers):
  """Traces the step only: shapes of states and logits fit."""
  decoder = dict(num_decoder_layers=2, scan_layers=scan_layers)
  build = {
    "bert": lambda: bert(2, scan_layers=scan_layers).clone(predicted_share=0.3),
    "gpt": lambda: GPT(TransformerConfig(**SIZE | decoder)),
    "t5": lambda: T5(TransformerConfig(**SIZE | decoder | dict(num_encoder_layers=2))),
    "classifier": lambda: attach_head(bert(2, scan_layers=scan_layers), ClassificationHead(labels=("a", "b"))),
  }[family]
  teacher = build()
  fewer = {f"num_{s}_layers": min(getattr(teacher.config, f"num_{s}_layers"), 1) for s in ("encoder", "decoder")}
  student = build().clone(config=dataclasses.replace(teacher.config, **fewer))
  layout = teacher.batch_layout
  shapes = blank(layout, Lengths(0, 6, 5), 2, packed=False, shifted=False)
  if family != "classifier":
    shapes.pop("labels", None)
  settings = Distillation("there", **ALL)
  settings.check(student, teacher)
  model = WithTeacher(student, teacher, settings)
  params = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), shapes))["params"])
  trained = Selection(dict.fromkeys(path for path in flatten(params) if not path.startswith(TEACHER)))
  state = TrainState(jax.ShapeDtypeStruct((), "int32"), params, (), jax.ShapeDtypeStruct((), "uint32"))
  _, metrics, gradients = jax.eval_shape(
    lambda state, batch: loss_and_gradients(model, LossSettings(), state, batch, trained), state, shapes
  )
  assert {f"{name}_loss" for name in ALL if name != "hard"} < set(metrics)
  assert not jax.tree.leaves(gradients[TEACHER])


def test_layers_are_evenly_spaced_up_to_the_last():
  mapped = lambda mine, theirs: Distillation("t").layer_map(bert(mine).config, bert(theirs).config, "encoder")  # noqa: E731
  assert mapped(4, 12) == (2, 5, 8, 11)  # TinyBERT's
  assert mapped(2, 4) == (1, 3) and mapped(3, 3) == (0, 1, 2) and mapped(3, 4) == (1, 2, 3)


HEADS = {name: attach_head(bert(2), ClassificationHead(labels=labels)) for name, labels in (
  ("ab", ("a", "b")), ("ba", ("b", "a"))
)}  # fmt: skip


@pytest.mark.parametrize(
  "student, teacher, changes, message",
  [
    (bert(2), bert(4, vocab_size=31), {}, "vocab_size is 30 in the student and 31 in the teacher"),
    (bert(2), bert(4, embed_dim=10), {}, "embed_dim is 8 in the student and 10"),
    (bert(2), bert(4, num_heads=4), {"attention": 1.0}, "num_heads is 2 in the student and 4"),
    (bert(2), bert(4), {"layers": [0, 4]}, "invalid Distillation.layers"),
    (bert(2), bert(4), {"layers": [0]}, "invalid Distillation.layers"),
    (bert(2), bert(4, mlm_head=False), {}, "no masked-LM head"),
    (bert(2, remat="full"), bert(4), {}, "REMAT"),
    (bert(2, layer_groups=1), bert(4), {"hidden": 1.0}, "layer_groups"),
    (bert(2), GPT(TransformerConfig(**SIZE, num_decoder_layers=2)), {}, "the teacher is a GPT, the student a BERT"),
    (
      GPT(TransformerConfig(**SIZE, num_decoder_layers=2)),
      AWDLSTM(AWDLSTMConfig(30, 8, 8, 2)),
      {},
      "the teacher is a AWDLSTM, the student a GPT",
    ),
    (bert(2), HEADS["ab"], {}, "BERT with a ClassificationHead"),
    (HEADS["ab"], HEADS["ba"], {}, "different labels"),
    (*[attach_head(bert(2), SpanHead())] * 2, {}, "no soft targets for a SpanHead"),
    (ELECTRA(BERT_CONFIG), bert(4), {}, "ELECTRA"),
  ],
)
def test_a_teacher_that_does_not_fit_is_refused(student, teacher, changes, message):
  with pytest.raises(UserError, match=message):
    Distillation("there", **changes).check(student, teacher)


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"teacher": ""}, "invalid Distillation.teacher"),
    ({"temperature": 0.0}, "invalid Distillation.temperature"),
    ({"soft": -1.0}, "invalid Distillation.soft"),
    ({"soft": 0.0, "cosine": 0.0}, "no loss that uses the teacher"),
  ],
)
def test_invalid_settings(settings, message):
  with pytest.raises(UserError, match=message):
    Distillation(**{"teacher": "there"} | settings)
