"""The losses of a small T5 on all of SNLI's validation split; as a program, on one of several hosts."""

import json
import sys

import jax
import numpy as np

from t5like import parallel
from t5like.experiments.experiment import Experiment
from t5like.experiments.phases import Phase, blank_batch
from t5like.experiments.token_caches import TokenCaches
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.objectives import Lengths, SpecialTokens
from t5like.runs.loss_evaluation import loss_evaluator, loss_step
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.state import state_spec
from t5like.vocabularies import load_vocabulary

LENGTHS = Lengths(48, 48, 6)  # some inputs are longer, some rows have room for two
CONFIG = TransformerConfig(
  vocab_size=4224, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1
)


def experiment_of(model, task, caches, **arguments):
  return Experiment(
    model_dir="unused", model=model, vocabulary="tiny", task=task, batch_size=8, steps=1, cache_dir=str(caches),
    optimizer=optimizers.adafactor(schedules.constant_rate()), **arguments,
  )  # fmt: skip


def evaluations(experiment, phase, members, special, mesh):
  """By task, and random parameters: the same on any mesh."""
  spec = state_spec(experiment.model, experiment.optimizer, blank_batch(experiment, phase), mesh)
  draw = np.random.default_rng(0)

  def placed(shape, sharding):
    values = draw.normal(size=shape.shape).astype(shape.dtype)
    if shape.shape[0] == experiment.model.config.vocab_size:
      values[8:] /= 8  # so that the first tokens, of which one ends a text, are often the likeliest
    return jax.make_array_from_callback(shape.shape, sharding, lambda index: values[index])

  params = jax.tree.map(placed, spec.shapes.params, spec.shardings.params)
  return loss_evaluator(experiment, phase, members, special, mesh, loss_step(experiment, phase, spec, mesh)), params


def snli(caches, batch_size, pack, mesh):
  experiment = experiment_of(T5(CONFIG), "snli", caches, lengths={"inputs": 48, "targets": 6}, pack=pack)
  vocabulary = load_vocabulary("tiny")
  members = TokenCaches(str(caches), "tiny", vocabulary).open("snli", "validation")
  made, params = evaluations(experiment, Phase(LENGTHS, batch_size), members, SpecialTokens.of(vocabulary), mesh)
  return made["snli"], params, members[0].cache


def main(caches: str) -> None:
  parallel.start(timeout=300, config="the same")
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=4))
  evaluation, params, _ = snli(caches, 240, False, mesh)
  print("values", json.dumps(evaluation(params)), flush=True)


if __name__ == "__main__":
  main(sys.argv[1])
