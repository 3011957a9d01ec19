"""Train steps compile in threads of their own, while the state is initialized or restored."""

import dataclasses
import threading

import numpy as np
import pytest

import t5like.runs.trainer as trainer
from t5like.experiments.reading import read_experiment
from t5like.runs import train
from t5like.runs.compiling import CompiledSteps
from t5like.training.step import LossSettings, train_step

WAIT = 60.0


def batch_of(length):
  return {"tokens": np.zeros((2, length), np.int32)}


def test_steps_of_several_shapes_compile_at_once():
  """Each is compiled only when both have begun."""
  both = threading.Barrier(2, timeout=WAIT)
  steps = CompiledSteps()

  def compile_step(answer):
    both.wait()
    return lambda state, batch: (answer, batch)

  for length in (8, 16):
    steps.add(batch_of(length), lambda length=length: compile_step(length), flops=10 * length)
  assert steps.wait() is steps.wait() is steps
  for length in (8, 16):
    assert steps(None, batch_of(length))[0] == length and steps.flops(batch_of(length)) == 10 * length


def test_an_error_of_the_compiler_is_raised_by_wait():
  steps = CompiledSteps()
  steps.add(batch_of(8), lambda: 1 / 0, flops=1)
  steps.add(batch_of(16), lambda: None, flops=1)
  with pytest.raises(ZeroDivisionError):
    steps.wait()


@pytest.fixture
def experiment(pretrain, tmp_path):
  files = [argument.partition("=")[2] for argument in pretrain if argument.startswith("--gin_file=")]
  given = [argument.removeprefix("--gin.").split("=", 1) for argument in pretrain if argument.startswith("--gin.")]
  return read_experiment(files, [*map(tuple, given), ("MODEL_DIR", str(tmp_path)), ("TRAIN_STEPS", "2")])


@pytest.mark.usefixtures("one_device")
def test_a_run_initializes_while_it_compiles(experiment, monkeypatch):
  """The step is traced in the thread of the caller, whose settings of JAX apply; its compilation waits here."""
  compiling, initialized, traced = threading.Event(), threading.Event(), []
  add, initialize = CompiledSteps.add, trainer.initialize

  def add_slow(self, batch, compile_step, flops):
    def after_initialization():
      compiling.set()
      assert initialized.wait(WAIT)
      return compile_step()

    add(self, batch, after_initialization, flops)

  def initialize_after(run, start):
    assert compiling.wait(WAIT)
    state = initialize(run, start)
    initialized.set()
    return state

  def step(*given):
    traced.append(threading.current_thread())
    return train_step(*given)

  monkeypatch.setattr(CompiledSteps, "add", add_slow)
  monkeypatch.setattr(trainer, "initialize", initialize_after)
  assert train(experiment, step=step).step == 2
  assert set(traced) == {threading.current_thread()}

  # Nothing is left to train, so nothing is traced.
  assert train(experiment, step=lambda *given: pytest.fail("traced")).step == 2


@pytest.mark.usefixtures("one_device")
def test_a_run_is_described_while_it_compiles(experiment, capsys):
  """The step is traced first: on an accelerator, to estimate the memory for the run card takes seconds."""

  given = dict(z_loss=0.01, label_smoothing=0.1, microbatches=2)

  def step(model, optimizer, settings, *args):
    print("traced")
    assert settings == LossSettings(**given, normalizer=50.0, layer_norms=True)
    return train_step(model, optimizer, settings, *args)

  train(dataclasses.replace(experiment, **given, loss_normalizer=50.0, norms_period=2), step=step)
  printed = capsys.readouterr().out
  assert printed.index("traced") < printed.index("parameters:") < printed.index("step 2/2")
