"""The inference API: load a model, then generate, score, rank, embed and fill masks."""

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
from t5like.decoding.options import decode_settings, with_defaults, without_own_end
from t5like.errors import UserError, nearest
from t5like.experiments.characters import with_characters
from t5like.experiments.compatibility import fitting_mesh, model_fingerprint
from t5like.experiments.experiment import Experiment
from t5like.experiments.languages import check_languages, languages_of_files, special_tokens, task_languages
from t5like.inference.converting import merged, save_hugging_face, save_model_directory
from t5like.inference.embeddings.jobs import Embedding
from t5like.inference.embeddings.pooled import pooled_model
from t5like.inference.encoder_jobs import FillMask, FillSpans
from t5like.inference.heads.methods import HeadMethods
from t5like.inference.heads.no_answer import with_threshold
from t5like.inference.inside.methods import InsideMethods
from t5like.inference.jobs import Answer, Generation, Job, Limits, Ranking
from t5like.inference.prompts import PromptForm, has_training_config, position_limit, prompt_form, with_rows_of
from t5like.inference.results import Candidate, Choice, Filled, Output
from t5like.inference.rows import candidate_lists, checked_batch_size, like_input, listed, numbered_rows
from t5like.inference.running import answer_all
from t5like.inference.sources import Source, TunedDirectory, open_source, weights_digest
from t5like.inference.vocabulary import find_vocabulary
from t5like.interop.layouts import flatten
from t5like.interop.new_folders import new_folder
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead
from t5like.models.shapes import boxed_shapes
from t5like.models.tuning import learned_tokens
from t5like.objectives import SpecialTokens
from t5like.parallel import MeshAxes
from t5like.training.checkpoints import best_step
from t5like.training.optimizers.rules import path_text
from t5like.vocabularies import Vocabulary

_BATCH, _SPANS_LENGTH = 32, 64
_TARGET, _CHOICES = "targets", "candidates"  # fields of rows
Runner = TypeVar("Runner")
Texts = str | Sequence[str]


def load(
  path: str | Path,
  vocabulary: str | None = None,
  mesh: MeshAxes | Mapping[str, int] | None = None,
  dtype: str | None = None,
  modules: Sequence[str] = (),
  base: str | Path | None = None,
  adapters: Mapping[str, str | Path] | None = None,
  languages: tuple[str, str] | None = None,
) -> Model:
  """Loads a model.

  Args:
    path: a run directory (its newest checkpoint; for the best, see `Model.best_step`), a checkpoint in it, a Hugging
      Face folder, `hf://org/name`, weights of ELMo or an AWD-LSTM.
    vocabulary: name or file; by default the model's own, or the one next to it.
    mesh: devices along each axis, such as {"tensor": 4}; by default the run's own mesh if it fits the available
      devices, else data parallelism.
    dtype: compute dtype, such as "bfloat16"; by default the model's.
    modules: Python modules that a run's configuration and evaluation may import. It is data: others are not imported.
    base: the base of a directory that was trained with a method such as LoRA, if it is not where it was in training.
    adapters: directories of such runs on this base, by name: `use` switches between them. The base is held once.
    languages: codes of inputs and outputs for mBART: ("en_XX", "ro_RO"); by default those of its run, or of its
      tokenizer files and generation_config.json.

  Returns: a Model, whose parameters are read on first use.
  """
  if not isinstance(adapters or {}, Mapping):
    raise UserError(f"not adapters: {adapters!r}", expected='their directories by name: {"formal": "runs/formal"}')
  source = open_source(path, dtype, modules, None if base is None else str(base))
  name, found = find_vocabulary(source.folder, source.module.config, vocabulary, source.vocabulary)
  module = with_characters(source.module, found)
  built, preset = fitting_mesh(MeshAxes.of(mesh), source.mesh, module.config)
  if vocabulary and source.recorded_vocabulary(None) not in (None, found.fingerprint):
    warn(f"the model was trained with another vocabulary than {vocabulary}")
  given = {name: str(folder) for name, folder in (adapters or {}).items()}
  model = Model(source, module, found, name, built, preset, bool(vocabulary), adapters=given, modules=tuple(modules))
  return dataclasses.replace(model, given_languages=languages and check_languages(languages, found))


@dataclasses.dataclass(frozen=True)
class Model(HeadMethods, InsideMethods):
  """A module with its parameters, its vocabulary and the mesh that it runs on.

  Every method takes one text or a list, and returns one result or a list in the same order. Texts are batched by
  length. A text that is too long raises UserError, unless `truncate` is set: an encoder then keeps its beginning, a
  decoder its end.
  """

  source: Source
  module: nn.Module
  vocabulary: Vocabulary
  vocabulary_name: str  # as in token caches
  mesh: Mesh
  preset: str | None = None  # of sharding rules; None: the default
  vocabulary_given: bool = False  # chosen by the user: overrides the one recorded in the checkpoint
  chosen_step: int | None = None  # None: the newest checkpoint
  average: bool = False  # use the moving average of the parameters
  adapters: Mapping[str, str] = dataclasses.field(default_factory=dict)  # directories by name
  shared: Model | None = None  # the base on whose devices' arrays an adapter runs
  given_languages: tuple[str, str] | None = None  # codes of inputs and outputs; None: the model's own
  modules: tuple[str, ...] = ()  # the user's, which may be imported

  def __repr__(self) -> str:
    return f"<{self.kind} of {self.folder}, vocabulary {self.vocabulary_name}, {parallel.describe_mesh(self.mesh)}>"

  def use(self, adapter: str | None) -> Model:
    """Returns the model with one of its adapters, or (None) without; all of them share the base's arrays."""
    if adapter is None:
      return self.shared or self
    if self.shared is not None:
      return self.shared.use(adapter)
    if adapter not in self.adapters:
      raise UserError(
        f"unknown adapter {adapter!r}", known=", ".join(self.adapters), nearest=nearest(adapter, list(self.adapters))
      )
    if adapter not in self._used:
      source = open_source(self.adapters[adapter], self.config.compute_dtype, base=str(self.folder))
      if not isinstance(source, TunedDirectory):
        raise UserError(f"{self.adapters[adapter]} is a complete model, not an adapter", adapter=adapter)
      changes = dict(source=source, module=source.module, chosen_step=None, average=False, shared=self)
      self._used[adapter] = dataclasses.replace(self, **changes)
    return self._used[adapter]

  def at(self, step: int | None = None, average: bool = False) -> Model:
    """Returns the same model with the parameters of another checkpoint, or their moving average."""
    return dataclasses.replace(self, chosen_step=self.step(step), average=average)

  def generate(
    self,
    texts: Texts,
    beams: int | None = None,
    max_length: int | None = None,
    samples: int | None = None,
    stop: Texts = (),
    batch_size: int = _BATCH,
    truncate: bool = False,
    **settings: Any,
  ) -> Output | list[Output] | list[list[Output]]:
    """Generates text: an answer by an encoder-decoder, a continuation by a decoder.

    Args:
      texts: the prompts.
      beams: beam search if more than 1; 1: greedy search.
      max_length: maximum number of generated tokens; by default 128, at most half of the model's positions.
      samples: number of samples per text.
      stop: texts that end an output; they are not part of it.
      batch_size: maximum number of texts per batch.
      truncate: cut texts that are too long.
      **settings: other fields of decoding.DecodeSettings. temperature, top_k, top_p and min_p select sampling,
        length_penalty and the like beam search; `seed` changes the samples. Those that are not given are the model's
        own (`decoding`).

    Returns: an Output per text; with `samples` or `n_best`, a list of Outputs per text.
    """
    given = dict(settings)
    is_default = beams is None or (beams == 1 and "beams" not in self.decoding and "n_best" not in settings)
    given |= {} if is_default else {"beams": beams}
    given |= {"method": "sample", "n_best": samples} if samples is not None else {}
    given |= {"max_length": max_length} if max_length is not None else {}
    given |= {} if stop in (None, ()) else {"stop": list(stop) if isinstance(stop, (list, tuple)) else [stop]}
    merged = with_defaults(given, self.decoding)
    decoding, stops = decode_settings(merged, self.vocabulary, self.positions)
    job = Generation(self, decoding, stops, Limits(truncate=truncate))
    found = [[Output(**output) for output in a["outputs"]] for a in self._answers(job, texts, batch_size)]
    return like_input(texts, found if "n_best" in given else [outputs[0] for outputs in found])

  def score(
    self, inputs: Texts, targets: Texts | None = None, batch_size: int = _BATCH, truncate: bool = False
  ) -> float | list[float]:
    """Returns the log-likelihood of each target given its input, summed over its tokens.

    Without targets, a decoder scores the inputs, the first token after its start token (GPT-2: <|endoftext|>); one
    that was trained on inputs and targets scores them as targets of an empty input, with the end of sequence.
    """
    if targets is None and not self.is_decoder:
      raise UserError(f"{self.kind} needs targets to score", try_="score(inputs, targets)")
    fields = None if targets is None else [{_TARGET: target} for target in listed(targets)]
    target_field = None if targets is None else _TARGET
    job = Ranking(self, Limits(truncate=truncate), batch_size, target_field=target_field, score_inputs=targets is None)
    return like_input(inputs, [answer["score"] for answer in self._answers(job, inputs, batch_size, fields)])

  def rank(
    self,
    inputs: Texts,
    candidates: Sequence[str] | Sequence[Sequence[str]],
    per_token: bool = False,
    batch_size: int = _BATCH,
    truncate: bool = False,
  ) -> list[Choice] | list[list[Choice]]:
    """Ranks candidate answers by log-likelihood.

    Args:
      inputs: one text or several.
      candidates: a list of texts for all inputs, or one list per input.
      per_token: rank by the mean over tokens instead of the sum, which favors short candidates.
      batch_size: maximum number of (input, candidate) pairs per batch.
      truncate: cut inputs that are too long.

    Returns: for each input a list of Choices, most likely first; ties keep their order.
    """
    given = listed(inputs)
    fields = [{_CHOICES: texts} for texts in candidate_lists(given, candidates)]
    job = Ranking(self, Limits(truncate=truncate), batch_size, candidates_field=_CHOICES, per_token=per_token)
    answers = self._answers(job, given, batch_size, fields)
    return like_input(inputs, [[Choice(**entry) for entry in answer["ranking"]] for answer in answers])

  def embed(
    self, texts: Texts, pooling: str | None = None, batch_size: int = _BATCH, truncate: bool = False,
    prompt: str | None = None,
  ) -> np.ndarray:  # fmt: skip
    """Returns float32 embeddings, [texts, width] or [width] for one text.

    pooling: of the last hidden states: "mean", "cls" (the first token), "max", "last", "weighted_mean". None: as the
      model was trained for: a run with an EmbeddingHead, or a folder of sentence-transformers, has its own pooling,
      layers and length, which longer texts are cut to; others: the mean. An encoder-decoder embeds with its encoder.
    prompt: the name of a prompt of a sentence-transformers folder, such as "query"; None: its default.
    """
    job = Embedding(self, Limits(truncate=truncate), pooling, prompt)
    return like_input(texts, job.all_vectors(numbered_rows(listed(texts)), checked_batch_size(batch_size)))

  def pooled(self, pooling: str = "mean") -> Model:
    """Returns the model with an EmbeddingHead that pools its last states, for evaluation and `save_hf`."""
    return pooled_model(self, pooling)

  def fill_mask(
    self, texts: Texts, top: int = 5, batch_size: int = _BATCH, truncate: bool = False
  ) -> Filled | list[Filled]:
    """Fills the masks of each text: [MASK] for BERT, <extra_id_0> and so on for T5.

    An encoder returns the `top` most likely tokens per mask. An encoder-decoder returns spans: the `top` outputs of
    beam search, each with a span for every sentinel and the probability of the complete output.

    Returns: Filled(text, masks) per text: the text with the best candidates, and all candidates of each mask.
    """
    limits = Limits(truncate=truncate)
    if self.module.batch_layout == "encoder_decoder" and self.vocabulary.sentinel_ids:
      length = {"max_length": min(_SPANS_LENGTH, self.positions or _SPANS_LENGTH)}
      decoding, _ = decode_settings({"method": "beam", "n_best": top} | length, self.vocabulary, self.positions)
      job: Job = FillSpans(self, decoding, (), limits)
    else:
      job = FillMask(self, limits, top)
    answers = self._answers(job, texts, batch_size)
    filled = [Filled(a["filled"], [[Candidate(**one) for one in mask] for mask in a["masks"]]) for a in answers]
    return like_input(texts, filled)

  def save(self, folder: str | Path) -> Path:
    """Writes a new model directory, for `load` and `t5like infer`, `eval` and `train`; returns its path.

    What a method such as LoRA has trained is merged into the base.
    """
    target = new_folder(folder)
    module, params = merged(with_threshold(self.module, self.folder, self.step()), self.params)
    save_model_directory(target, module, params, self.vocabulary, self.vocabulary_name, self.folder, self.macros)
    return target

  def save_hf(self, folder: str | Path) -> Path:
    """Writes a new Hugging Face folder with tokenizer, for transformers and `load`; returns its path."""
    target = new_folder(folder)
    params = self.source.read(self.chosen_step, self.average, None)
    module, params = merged(with_threshold(self.module, self.folder, self.step()), params)
    kind, decoding = self.source.model_type, self.decoding
    save_hugging_face(target, module, params, self.vocabulary, self.experiment, kind, decoding, self.folder)
    return target

  @cached_property
  def params(self) -> Any:
    """The parameters on the devices, sharded as in training."""
    return self.parameters(self.chosen_step, self.average)

  @property
  def config(self) -> TransformerConfig:
    return self.module.config

  @property
  def kind(self) -> str:
    """The model family: T5, GPT or BERT."""
    return type(self.module.backbone if isinstance(self.module, WithHead) else self.module).__name__

  @property
  def positions(self) -> int | None:
    """The number of learned positions; None: no limit."""
    return position_limit(self.config, learned_tokens(self.module))

  @property
  def is_decoder(self) -> bool:
    """Whether the model is decoder-only."""
    return self.module.batch_layout in ("decoder", "prefix_lm")

  @cached_property
  def special(self) -> SpecialTokens:
    special = special_tokens(self.config, self.vocabulary, self.languages)
    return with_rows_of(special, self.module, self.prompt_form)

  @property
  def decoding(self) -> Mapping[str, Any]:
    """The model's own settings of `generate`: of a Hugging Face folder's generation_config.json, or a run's DECODING.

    With languages whose codes open a text (mBART-50), the first token is that of the output's.
    """
    own, opened = self.macros["DECODING"], self.special.before_targets
    return {**own, "forced_first": opened[0]} if self.languages and opened else own

  @property
  def macros(self) -> dict[str, Mapping[str, Any]]:
    """The model's own settings, as macros of a configuration."""
    own = without_own_end(self.source.decoding, self.vocabulary.eos_id)
    return {"DECODING": own, "LANGUAGES": self.languages}

  @property
  def languages(self) -> Mapping[str, tuple[str, str]]:
    """The codes of inputs and outputs, by task; without an entry, the model has none or they are not known."""
    if self.given_languages:
      return {"": self.given_languages}
    return task_languages(self.experiment) or languages_of_files(self.config, self.vocabulary, self.source.decoding)

  @cached_property
  def prompt_form(self) -> PromptForm:
    return prompt_form(self.module, self.vocabulary, self.experiment, self.languages)

  @property
  def folder(self) -> Path:
    return self.source.folder

  @property
  def experiment(self) -> Experiment | None:
    """The configuration of a run or conversion; None for a Hugging Face folder."""
    return self.source.experiment

  @property
  def has_training_config(self) -> bool:
    """Whether the model was trained here, so that its task, objective and lengths are known."""
    return has_training_config(self.experiment)

  @property
  def fingerprint(self) -> dict[str, Any]:
    return model_fingerprint(self.config, self.vocabulary)

  def steps(self) -> list[int]:
    """Returns the steps of all existing checkpoints; none for a Hugging Face folder."""
    return self.source.steps()

  def step(self, step: int | None = None) -> int | None:
    """Returns the step that `parameters` would read: the given one or the newest; None for a Hugging Face folder."""
    return self.source.step(self.chosen_step if step is None else step)

  @property
  def best_step(self) -> int | None:
    """The checkpoint with the best KEEP.metric of the run, for `at`; None if the run has no such metric."""
    return best_step(self.folder, self.experiment.keep) if self.experiment else None

  def parameters(self, step: int | None = None, average: bool = False) -> Any:
    """Loads the parameters of a step, or their moving average, onto the devices, sharded as in training."""
    step, fingerprint = self.step(step), self.fingerprint
    if self.vocabulary_given:
      fingerprint["vocabulary"] = self.source.recorded_vocabulary(step)
    params = self.source.read(step, average, fingerprint)
    if "head" in boxed_shapes(self.module) and "head" not in params:
      raise UserError(
        f"the checkpoint has no {type(self.module.head).__name__}, which its configuration names", folder=self.folder
      )
    held = self._held_by_base(step) if self.shared else {}
    with self.sharding():
      return _shard_params(self.module, params, self.mesh, held)

  def _held_by_base(self, step: int | None) -> dict[str, jax.Array]:
    """Returns the base's arrays on the devices that this adapter uses unchanged, by its own paths."""
    self.source.release()
    trained, prefix = self.source.trained_paths(step), "backbone/" if isinstance(self.module, WithHead) else ""
    return {prefix + path: x for path, x in flatten(self.shared.params).items() if prefix + path not in trained}

  def identity(self, step: int | None = None) -> dict[str, Any]:
    """Returns an identity of the weights of a step, independent of their location: a digest of samples of the files."""
    step = self.step(step)
    structure = hashlib.sha256(repr(sorted(self.fingerprint.items())).encode()).hexdigest()[:16]
    weights = weights_digest(self.source.files(step))
    return {"weights": weights, "structure": structure, "step": step, "vocabulary": self.vocabulary.fingerprint}

  @contextlib.contextmanager
  def sharding(self) -> Iterator[None]:
    """Activates the sharding rules of the model's run for compilation. Not needed around `runner`."""
    with parallel.use_preset(self.preset):
      yield

  def runner(self, kind: Callable[..., Runner], *arguments: Any) -> Runner:
    """Returns kind(module, mesh, *arguments), such as a Generator, built once under the model's sharding rules."""
    key = (kind, arguments)
    if key not in self._runners:
      with self.sharding():
        self._runners[key] = kind(self.module, self.mesh, *arguments)
    return self._runners[key]

  @cached_property
  def _used(self) -> dict[str, Model]:
    return {}

  @cached_property
  def _runners(self) -> dict[Any, Any]:
    return {}

  def _answers(
    self, job: Job, texts: Texts, batch_size: int, fields: Sequence[Mapping[str, Any]] | None = None
  ) -> list[Answer]:
    texts = listed(texts)
    batch_size = checked_batch_size(batch_size)
    if fields is not None and len(fields) != len(texts):
      raise UserError(f"{len(texts)} inputs but {len(fields)} answers", expected="one per input")
    return answer_all(job, numbered_rows(texts, fields), batch_size)


def _shard_params(model: nn.Module, params: Any, mesh: Mesh, held: Mapping[str, jax.Array]) -> Any:
  """Shards parameters; each host copies its own shards, as `jax.device_put` would compare arrays across hosts.

  Those in `held`, by path, are on the devices already.
  """
  shardings = parallel.parameter_shardings(boxed_shapes(model), mesh)

  def place(path: tuple, x: Any, sharding: Any) -> jax.Array:
    found = held.get(path_text(path))
    if found is not None and (found.shape, found.dtype) == (x.shape, x.dtype):
      return found
    return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])

  return jax.tree.map_with_path(place, params, shardings)
