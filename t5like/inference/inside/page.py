"""Attention weights as one self-contained HTML page: no network, no font; its script only draws."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import math
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.inference.results import Attention

_KINDS = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Decoder to encoder"}
_TITLE = 80  # characters of a text in the list of texts


@dataclasses.dataclass(frozen=True)
class PageLimits:
  """The most that a page shows: a browser has to hold all of it."""

  texts: int = 16
  tokens: int = 128  # per text and side, from the beginning
  layers: int = 48  # evenly spaced, with the last
  heads: int = 32  # the first
  weights: int = 12 * 2**20  # of all texts; a byte each


def attention_page(
  model: str, found: Sequence[tuple[str, Attention]], limits: PageLimits | None = None, left_out: int = 0
) -> str:
  """Returns a page for texts with their attention weights; `left_out` is the number of texts that were not read."""
  limits = limits or PageLimits()
  texts, spent = [], 0
  for title, attention in found[: limits.texts]:
    kinds = [_kind(attention, name, limits) for name in _KINDS if getattr(attention, name) is not None]
    size = sum(len(kind["data"]) * 3 // 4 for kind in kinds)
    if texts and spent + size > limits.weights:
      break
    texts.append({"title": title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…", "kinds": kinds})
    spent += size
  missing = len(found) - len(texts) + left_out
  note = f"{missing:,} more texts are left out: the page has the first {len(texts):,}." if missing else ""
  read = lambda name: Path(__file__).with_name(name).read_text(encoding="utf-8")  # noqa: E731
  # "<" in a token must not end the element that holds the data.
  data = json.dumps({"texts": texts}, ensure_ascii=False).replace("<", "\\u003c")
  return string.Template(read("page.html")).substitute(
    title=html.escape(f"Attention of {model}"), note=note, data=data,
    style=read("page.css"), script=read("page.js"),
  )  # fmt: skip


def _kind(attention: Attention, name: str, limits: PageLimits) -> dict[str, Any]:
  """Returns one kind of attention of a text as data of the page: see page.js."""
  weights: np.ndarray = getattr(attention, name)  # [layers, heads, queries, keys]
  own = attention.tokens if attention.target_tokens is None or name == "encoder" else attention.target_tokens
  queries, keys = own, attention.tokens if name == "cross" else own
  layers, heads = _evenly(weights.shape[0], limits.layers), list(range(min(weights.shape[1], limits.heads)))
  kinds = sum(getattr(attention, kind) is not None for kind in _KINDS)
  room = math.isqrt(max(limits.weights // (kinds * len(layers) * len(heads)), 1))
  most = min(limits.tokens, room)
  cut = weights[np.ix_(layers, heads, range(min(most, len(queries))), range(min(most, len(keys))))]
  scaled = np.rint(255 * np.sqrt(np.clip(cut, 0.0, 1.0))).astype(np.uint8)
  shown = [(len(layers), weights.shape[0], "layers"), (len(heads), weights.shape[1], "heads"),
           (cut.shape[2], len(queries), "queries"), (cut.shape[3], len(keys), "keys")]  # fmt: skip
  parts = [f"{kept:,} of {count:,} {noun}" for kept, count, noun in shown if kept < count]
  return {
    "label": _KINDS[name],
    "queries": queries[:most],
    "keys": keys[:most],
    "layers": [layer + 1 for layer in layers],
    "heads": [head + 1 for head in heads],
    "note": f"The page is limited: it shows {', '.join(parts)}." if parts else "",
    "data": base64.b64encode(scaled.tobytes()).decode(),
  }


def _evenly(count: int, most: int) -> list[int]:
  """Returns all of 0 to count - 1, or `most` of them at equal distances, with the last."""
  return list(range(count)) if count <= most else [math.ceil((i + 1) * count / most) - 1 for i in range(most)]
