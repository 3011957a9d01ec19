"""A model ready for use: text in, text and numbers out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from t5like import parallel
from t5like.console import warn
from t5like.decoding.options import decode_settings
from t5like.errors import UserError
from t5like.experiments.compatibility import check_splits, model_fingerprint
from t5like.experiments.experiment import Experiment
from t5like.inference import converting
from t5like.inference.encoder_jobs import Embedding, FillMask, FillSpans
from t5like.inference.jobs import Answer, Generation, Job, Limits, Ranking
from t5like.inference.prompts import PromptForm, is_trained_elsewhere, position_limit, prompt_form
from t5like.inference.results import Candidate, Choice, Filled, Output
from t5like.inference.rows import Row
from t5like.inference.running import answer_all
from t5like.inference.sources import Source, open_source
from t5like.inference.vocabulary import find_vocabulary
from t5like.models.config import TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.parallel import MeshAxes
from t5like.vocabularies import Vocabulary

_BLOCKS, _BLOCK = 64, 4096  # of a file of weights, and their bytes
_BATCH, _LENGTH = 32, 64
_TARGET, _CHOICES = "targets", "candidates"  # fields of rows
Runner = TypeVar("Runner")
Texts = str | Sequence[str]


def load(
  path: str | Path,
  vocabulary: str | None = None,
  mesh: MeshAxes | Mapping[str, int] | None = None,
  dtype: str | None = None,
  modules: Sequence[str] = (),
) -> Model:
  """Loads a model.

  Args:
    path: a run directory, one checkpoint in it, a Hugging Face folder, or `hf://org/name` on the Hugging Face Hub.
    vocabulary: its name or file; by default the model's own, or the one next to it.
    mesh: devices along each axis, such as {"tensor": 4}; by default the run's own mesh where it fits the available
      devices, else data parallelism.
    dtype: of the computation, such as "bfloat16"; by default the model's.
    modules: Python modules that the configuration of a run directory may import. A directory is data: others that it
      names are not imported.

  Returns: a Model. Its parameters are read when they are first needed.
  """
  source = open_source(path, dtype, modules)
  module = source.module
  name, found = find_vocabulary(source.folder, module.config, vocabulary, source.vocabulary)
  axes = MeshAxes(**mesh) if isinstance(mesh, Mapping) else mesh
  built, preset = _mesh_for(axes, source.mesh, module.config)
  if vocabulary and source.recorded_vocabulary(None) not in (None, found.fingerprint):
    warn(f"{vocabulary} is not the vocabulary that the model was trained with")
  return Model(source, module, found, name, built, preset, vocabulary_given=bool(vocabulary))


@dataclasses.dataclass(frozen=True)
class Model:
  """A module with its parameters, its vocabulary and the mesh that it runs on.

  Every method takes one text or a list of them, and returns one result or a list in the same order. Texts are batched
  by length. A text that is too long for the model raises UserError, unless `truncate` is set: then an encoder reads
  its beginning and a decoder its end.
  """

  source: Source
  module: nn.Module
  vocabulary: Vocabulary
  vocabulary_name: str  # as a token cache names it
  mesh: Mesh
  preset: str | None = None  # of the sharding rules; None: the default one
  vocabulary_given: bool = False  # the user chose it, and knows why where the checkpoint names another
  chosen_step: int | None = None  # None: the newest checkpoint
  average: bool = False  # the moving average of the parameters

  def at(self, step: int | None = None, average: bool = False) -> Model:
    """Returns the same model with the parameters of another checkpoint, or their moving average."""
    return dataclasses.replace(self, chosen_step=self.step(step), average=average)

  def generate(
    self,
    texts: Texts,
    beams: int = 1,
    max_length: int | None = None,
    samples: int | None = None,
    stop: Texts = (),
    batch_size: int = _BATCH,
    truncate: bool = False,
    **settings: Any,
  ) -> Output | list[Output] | list[list[Output]]:
    """Generates text: an answer by an encoder-decoder, a continuation by a decoder.

    Args:
      texts: what to answer or to continue.
      beams: more than 1: beam search.
      max_length: tokens to write at most; by default 64, or half of the positions of a model that has fewer.
      samples: the number of samples to draw for each text.
      stop: texts before which an output ends.
      batch_size: texts at a time, at most.
      truncate: cut texts that are too long.
      **settings: other fields of decoding.DecodeSettings. temperature, top_k, top_p and min_p make it sampling,
        length_penalty and others of beam search make it beam search; `seed` gives other samples.

    Returns: an Output for each text; where `samples` or `n_best` is given, a list of Outputs for each text.
    """
    given = dict(settings)
    given |= {"beams": beams} if beams != 1 else {}
    given |= {"method": "sample", "n_best": samples} if samples is not None else {}
    if max_length is None:
      max_length = min(_LENGTH, max((self.positions or 2 * _LENGTH) // 2, 1))
    given["max_length"] = max_length
    given |= {"stop": [stop] if isinstance(stop, str) else list(stop)} if stop else {}
    decoding, stops = decode_settings(given, self.vocabulary, self.positions)
    job = Generation(self, decoding, stops, Limits(truncate=truncate))
    found = [[Output(**output) for output in a["outputs"]] for a in self._answers(job, texts, batch_size)]
    return _alike(texts, found if "n_best" in given else [outputs[0] for outputs in found])

  def score(
    self, inputs: Texts, targets: Texts | None = None, batch_size: int = _BATCH, truncate: bool = False
  ) -> float | list[float]:
    """Returns the log-likelihood of each target after its input, the sum over its tokens.

    Without targets, a decoder scores the inputs themselves.
    """
    if targets is None and not self.is_decoder:
      raise UserError(
        f"{self.kind} scores targets: it has no likelihood for a text alone", try_="score(inputs, targets)"
      )
    fields = None if targets is None else [{_TARGET: target} for target in _listed(targets)]
    target_field = None if targets is None else _TARGET
    job = Ranking(self, Limits(truncate=truncate), batch_size, target_field=target_field, whole=targets is None)
    return _alike(inputs, [answer["score"] for answer in self._answers(job, inputs, batch_size, fields)])

  def rank(
    self,
    inputs: Texts,
    candidates: Sequence[str] | Sequence[Sequence[str]],
    per_token: bool = False,
    batch_size: int = _BATCH,
    truncate: bool = False,
  ) -> list[Choice] | list[list[Choice]]:
    """Orders candidate answers by their log-likelihood.

    Args:
      inputs: one text or several.
      candidates: a list of texts for all inputs, or a list of such lists, one for each input.
      per_token: order by the mean over tokens, not by the sum: longer candidates are then not at a disadvantage.
      batch_size: pairs of an input and a candidate at a time, at most.
      truncate: cut inputs that are too long.

    Returns: for each input a list of Choice(text, score, per_token), the likeliest first; of equals the first given.
    """
    each = [candidates] * len(_listed(inputs)) if all(isinstance(c, str) for c in candidates) else candidates
    fields = [{_CHOICES: list(texts)} for texts in each]
    job = Ranking(self, Limits(truncate=truncate), batch_size, candidates_field=_CHOICES, per_token=per_token)
    answers = self._answers(job, inputs, batch_size, fields)
    return _alike(inputs, [[Choice(**entry) for entry in answer["ranking"]] for answer in answers])

  def embed(self, texts: Texts, pooling: str = "mean", batch_size: int = _BATCH, truncate: bool = False) -> np.ndarray:
    """Returns vectors as float32, [texts, embed] or [embed] for one text.

    pooling: "mean", over the last hidden states of all tokens; "cls", the state of [CLS]. An encoder-decoder embeds
    with its encoder.
    """
    job = Embedding(self, Limits(truncate=truncate), pooling)
    vectors = [answer["embedding"] for answer in self._answers(job, texts, batch_size)]
    return _alike(texts, np.array(vectors, np.float32).reshape(-1, job.width))

  def fill_mask(
    self, texts: Texts, top: int = 5, batch_size: int = _BATCH, truncate: bool = False
  ) -> Filled | list[Filled]:
    """Fills in the masks of each text: [MASK] for BERT, <extra_id_0> and so on for T5.

    An encoder gives the `top` likeliest tokens under each mask. An encoder-decoder gives spans: `top` outputs of beam
    search, each with a span for every sentinel, and as probability that of the whole output.

    Returns: Filled(text, masks) for each text: the text with the likeliest filled in, and for each mask its candidates.
    """
    limits = Limits(truncate=truncate)
    if self.module.batch_layout == "encoder_decoder" and self.vocabulary.sentinel_ids:
      length = {"max_length": min(_LENGTH, self.positions or _LENGTH)}
      decoding, _ = decode_settings({"method": "beam", "n_best": top} | length, self.vocabulary, self.positions)
      job: Job = FillSpans(self, decoding, (), limits)
    else:
      job = FillMask(self, limits, top)
    answers = self._answers(job, texts, batch_size)
    return _alike(
      texts, [Filled(a["filled"], [[Candidate(**one) for one in mask] for mask in a["masks"]]) for a in answers]
    )

  def save(self, folder: str | Path) -> Path:
    """Writes a new model directory, which `load`, `t5like infer`, `eval` and `train` read; returns its path."""
    target = converting.new_folder(folder)
    converting.save_model_directory(
      target, self.module, self.params, self.vocabulary, self.vocabulary_name, self.folder
    )
    return target

  def save_hf(self, folder: str | Path) -> Path:
    """Writes a new Hugging Face folder, tokenizer included, which transformers and `load` read; returns its path."""
    target = converting.new_folder(folder)
    params = self.source.read(self.chosen_step, self.average, None)
    converting.save_hugging_face(target, self.module, params, self.vocabulary, self.experiment, self.source.model_type)
    return target

  @cached_property
  def params(self) -> Any:
    """The parameters on the devices, sharded as in training; read once."""
    return self.parameters(self.chosen_step, self.average)

  @property
  def config(self) -> TransformerConfig:
    return self.module.config

  @property
  def kind(self) -> str:
    """The model family: T5, GPT or BERT."""
    return type(self.module).__name__

  @property
  def positions(self) -> int | None:
    """The number of learned positions; None where there is no limit."""
    return position_limit(self.config)

  @property
  def is_decoder(self) -> bool:
    """Whether it continues a prompt, and has no encoder that reads it."""
    return self.module.batch_layout in ("decoder", "prefix_lm")

  @cached_property
  def special(self) -> SpecialTokens:
    return SpecialTokens.of(self.vocabulary)

  @property
  def prompt_form(self) -> PromptForm:
    return prompt_form(self.module, self.vocabulary, self.experiment)

  @property
  def folder(self) -> Path:
    return self.source.folder

  @property
  def experiment(self) -> Experiment | None:
    """The run or conversion that the model comes from; None for a Hugging Face folder."""
    return self.source.experiment

  @property
  def trained_elsewhere(self) -> bool:
    return is_trained_elsewhere(self.experiment)

  @property
  def fingerprint(self) -> dict[str, Any]:
    return model_fingerprint(self.config, self.vocabulary)

  def steps(self) -> list[int]:
    """The steps of all checkpoints that exist now; none in a Hugging Face folder."""
    return self.source.steps()

  def step(self, step: int | None = None) -> int | None:
    """The step that `parameters` reads: the given one, else the newest; None in a Hugging Face folder."""
    return self.source.step(self.chosen_step if step is None else step)

  def parameters(self, step: int | None = None, average: bool = False) -> Any:
    """Reads the parameters of a step, or their moving average, onto the devices, sharded as in training."""
    step, fingerprint = self.step(step), self.fingerprint
    if self.vocabulary_given:
      fingerprint["vocabulary"] = self.source.recorded_vocabulary(step)
    params = self.source.read(step, average, fingerprint)
    with self.sharding():
      return _placed(self.module, params, self.mesh)

  def identity(self, step: int | None = None) -> dict[str, Any]:
    """Identifies the weights of a step, wherever their folder is, by a digest of parts of their files."""
    step = self.step(step)
    structure = hashlib.sha256(repr(sorted(self.fingerprint.items())).encode()).hexdigest()[:16]
    weights = _digest(self.source.files(step))
    return {"weights": weights, "structure": structure, "step": step, "vocabulary": self.vocabulary.fingerprint}

  def task_hint(self) -> str:
    """The options that find the tasks and token caches of the model's own run; '' where there are none."""
    return self.source.task_hint()

  @contextlib.contextmanager
  def sharding(self) -> Iterator[None]:
    """While active, compilation follows the sharding rules of the model's run. `runner` does without."""
    with parallel.use_preset(self.preset):
      yield

  def runner(self, kind: Callable[..., Runner], *arguments: Any) -> Runner:
    """Returns kind(module, mesh, *arguments), such as a Generator, made once under the model's sharding rules."""
    key = (kind, arguments)
    if key not in self._runners:
      with self.sharding():
        self._runners[key] = kind(self.module, self.mesh, *arguments)
    return self._runners[key]

  @cached_property
  def _runners(self) -> dict[Any, Any]:
    return {}

  def _answers(
    self, job: Job, texts: Texts, batch_size: int, fields: Sequence[Mapping[str, Any]] | None = None
  ) -> list[Answer]:
    texts = _listed(texts)
    if fields is not None and len(fields) != len(texts):
      raise UserError(f"{len(texts)} inputs and {len(fields)} answers to them", expected="one for each input")
    rows = [Row(n, f"texts[{n}]", text, {} if fields is None else fields[n]) for n, text in enumerate(texts)]
    return answer_all(job, rows, batch_size)


def _listed(texts: Texts) -> list[str]:
  return [texts] if isinstance(texts, str) else list(texts)


def _alike(texts: Texts, results: Any) -> Any:
  """One result for one text."""
  return results[0] if isinstance(texts, str) else results


def _mesh_for(given: MeshAxes | None, own: MeshAxes, config: TransformerConfig) -> tuple[Mesh, str | None]:
  """The requested mesh; else the run's own, or plain data parallelism where these are other devices than the run's."""
  axes = own if given is None else given
  try:
    mesh = parallel.make_mesh(axes)
    check_splits(config, mesh)
    return mesh, axes.preset
  except UserError:
    if given is not None:
      raise
  return parallel.make_mesh(MeshAxes()), None


def _digest(files: list[Path]) -> str:
  """Digests the sizes and blocks spread over each file: other weights differ everywhere."""
  digest = hashlib.sha256()
  for path in files:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
      for part in range(_BLOCKS):
        file.seek(size * part // _BLOCKS)
        digest.update(file.read(_BLOCK))
  return digest.hexdigest()[:16]


def _placed(model: nn.Module, params: Any, mesh: Mesh) -> Any:
  """Each host copies the parts of its own devices; `jax.device_put` would compare whole arrays over all hosts."""
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  boxed = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  shardings = parallel.parameter_shardings(boxed, mesh)
  return jax.tree.map(
    lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda at: x[at]), params, shardings
  )
