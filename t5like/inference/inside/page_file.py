"""Writes the page of attention weights for the rows of a file or a task."""

from __future__ import annotations

import jax

from t5like.errors import UserError
from t5like.files import storage
from t5like.inference.batch_inference import InferenceSettings, input_rows
from t5like.inference.inside.layers import TARGETS, WEIGHTS, LookInside
from t5like.inference.inside.page import PageLimits, attention_page
from t5like.inference.job_settings import Generate
from t5like.inference.model import Model
from t5like.inference.results import Attention
from t5like.inference.rows import RejectedRow, windows
from t5like.inference.running import Progress, answer_window
from t5like.models.heads import WithHead


def write_attention_page(model: Model, settings: InferenceSettings, path: str, target_field: str = TARGETS) -> int:
  """Writes a page with the attention weights of the first rows; returns the number of rejected rows.

  The decoder of an encoder-decoder reads the row's target, else the answer that it generates (`settings.job`).
  """
  limits = PageLimits()
  storage.check_reachable(path, "--attention")
  file = storage.as_path(path)
  if file.exists() and not settings.overwrite:
    raise UserError(f"{path} exists", option="--attention", try_="another file, or --overwrite")
  if settings.task and isinstance(model.module, WithHead):
    raise UserError("--attention reads the texts of a file for a model with a head", try_="--input=FILE")
  reading = settings.reading(settings.form)
  rows, total = input_rows(model, settings, reading)
  decoding = None
  if model.module.batch_layout == "encoder_decoder":
    generate = settings.job if isinstance(settings.job, Generate) else Generate()
    decoding, _ = generate.settings(model)
  job = LookInside(model, reading.limits, WEIGHTS, target_field, decoding)
  found: list[tuple[str, Attention]] = []
  read, rejected = 0, 0
  progress, planner = Progress(min(total or limits.texts, limits.texts), 0, job.unit), job.planner(settings.batch_size)
  for window in windows(rows, lambda: max(min(settings.batch_size, limits.texts - len(found)), 1)):
    entries, answers, stopped = answer_window(job, window, planner, progress, settings.strict)
    read, rejected = read + len(window), rejected + sum(isinstance(entry, RejectedRow) for entry in entries)
    if stopped:
      raise UserError(f"{stopped.location}: {stopped.reason}", try_="fix it, or drop --strict to skip it")
    pairs = zip(entries, answers, strict=True)
    found.extend((row.text, Attention(**answer)) for row, answer in pairs if answer is not None)
    if len(found) >= limits.texts:
      break
  progress.end()
  if not found:
    raise UserError("no row could be read")
  if jax.process_index() == 0:
    storage.write_atomic(file, attention_page(model.folder.name, found, limits, max((total or read) - read, 0)))
  return rejected
