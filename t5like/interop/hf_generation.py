"""The decoding settings of a Hugging Face folder: generation_config.json, or older fields of config.json.

Their lengths of an encoder-decoder count its start token, ours do not; those of a decoder count the prompt and are
ignored. Sampling is left to the user: `do_sample` and its options are ignored.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.console import warn
from t5like.errors import UserError, is_finite
from t5like.interop.tensor_folders import read_json

FILE = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
_EARLY_STOPPING = {True: "first", False: "heuristic", "never": "never"}
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_MOST = 2**31
# Settings that change outputs and that we do not have, with the values that have no effect.
_IGNORED = {
  "begin_suppress_tokens": [], "sequence_bias": {}, "exponential_decay_length_penalty": [], "guidance_scale": 1,
  "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "num_beam_groups": 1, "diversity_penalty": 0,
  "penalty_alpha": 0, "force_words_ids": [], "forced_decoder_ids": [], "watermarking_config": {},
  "renormalize_logits": False, "constraints": [], "dola_layers": None,
}  # fmt: skip


def decoding_of(folder: Path, encoder_decoder: bool) -> dict[str, Any]:
  """Returns fields of DecodeSettings, as transformers' `generate` would use them for the model of a folder."""
  path = next((folder / name for name in (FILE, "config.json") if (folder / name).is_file()), None)
  if path is None:
    return {}
  hf = read_json(path)
  if ignored := [name for name, default in _IGNORED.items() if hf.get(name) not in (None, default)]:
    warn(f"{path}: ignored " + ", ".join(f"{name} = {str(hf[name])[:60]}" for name in ignored))
  try:
    ends = ends_of(folder)
    return _from_hf(hf, encoder_decoder) | _forbidden(hf, ends) | ({"more_ends": tuple(ends)} if ends else {})
  except ValueError as error:
    raise UserError(f"invalid {error} in {path}") from None


def _from_hf(hf: Mapping[str, Any], encoder_decoder: bool) -> dict[str, Any]:
  found: dict[str, Any] = {}
  for bound in ("max", "min"):
    if (length := _whole(hf, f"{bound}_new_tokens")) is not None:
      found[f"{bound}_length"] = length
    elif encoder_decoder and (length := _whole(hf, f"{bound}_length")) is not None:
      found[f"{bound}_length"] = max(length - 1, int(bound == "max"))
  found["no_repeat_ngram"] = _whole(hf, "no_repeat_ngram_size") or 0
  found["repetition_penalty"] = _number(hf, "repetition_penalty", 1.0)
  found["forced_end"] = hf.get("forced_eos_token_id") is not None
  defaults = {"no_repeat_ngram": 0, "repetition_penalty": 1.0, "forced_end": False, "min_length": 0}
  found = {name: value for name, value in found.items() if name not in defaults or value != defaults[name]}
  # Of a decoder it is forced only after a prompt of one token.
  if encoder_decoder and (first := _whole(hf, "forced_bos_token_id")) is not None:
    found["forced_first"] = first
  beams, stopping = _whole(hf, "num_beams") or 1, hf.get("early_stopping") or False
  if not isinstance(stopping, str | bool) or stopping not in _EARLY_STOPPING:
    raise ValueError(f"early_stopping: {str(stopping)[:60]}")
  found |= {"method": "beam", "beams": beams} if beams > 1 else {"method": "greedy"}
  # Also without beams: they are how a user's beam search ranks.
  found |= {"early_stopping": _EARLY_STOPPING[stopping], "penalty_form": "power"}
  return found | {"length_penalty": _number(hf, "length_penalty", 1.0)}


def _forbidden(hf: Mapping[str, Any], ends: Sequence[int]) -> dict[str, Any]:
  """Returns the sequences of bad_words_ids and suppress_tokens; as in transformers, an end alone is no bad word."""
  words, tokens = hf.get("bad_words_ids") or [], hf.get("suppress_tokens") or []
  for name, ids in (("bad_words_ids", words), ("suppress_tokens", [tokens])):
    lists = isinstance(ids, list) and all(isinstance(sequence, list) for sequence in ids)
    if not lists or not all(type(token) is int and 0 <= token < _MOST for sequence in ids for token in sequence):
      raise ValueError(f"{name}: {str(hf[name])[:60]}")
  sequences = [tuple(word) for word in words if word and word not in [[end] for end in ends]]
  sequences += [(token,) for token in tokens]
  return {"forbidden": tuple(dict.fromkeys(sequences))} if sequences else {}


def write_decoding(folder: Path, decoding: Mapping[str, Any], encoder_decoder: bool) -> None:
  """Writes generation_config.json for the model in `folder`; its ids are those of config.json. See `check_decoding`."""
  config = read_json(folder / "config.json")
  hf: dict[str, Any] = {name: config[name] for name in _IDS if config.get(name) is not None}
  if more := decoding.get("more_ends"):
    hf["eos_token_id"] = list(dict.fromkeys([*_ends(config), *more]))
  for bound in ("max", "min"):
    if length := decoding.get(f"{bound}_length"):
      hf |= {f"{bound}_length": length + 1} if encoder_decoder else {f"{bound}_new_tokens": length}
  names = {
    "beams": "num_beams", "no_repeat_ngram": "no_repeat_ngram_size", "repetition_penalty": "repetition_penalty",
    "forced_first": "forced_bos_token_id", "length_penalty": "length_penalty",
  }  # fmt: skip
  hf |= {theirs: decoding[ours] for ours, theirs in names.items() if decoding.get(ours) is not None}
  if decoding.get("forbidden"):
    hf["bad_words_ids"] = [list(sequence) for sequence in decoding["forbidden"]]
  if decoding.get("forced_end"):
    hf["forced_eos_token_id"] = config.get("eos_token_id")
  if "early_stopping" in decoding:
    hf["early_stopping"] = next(k for k, v in _EARLY_STOPPING.items() if v == decoding["early_stopping"])
  (folder / FILE).write_text(json.dumps(dict(sorted(hf.items())), indent=2) + "\n")


def check_decoding(decoding: Mapping[str, Any]) -> None:
  """Raises UserError for settings that Hugging Face does not have."""
  if "beams" in decoding and decoding.get("penalty_form") != "power" and decoding.get("length_penalty") != 0:
    raise UserError(
      "DECODING has a length penalty that Hugging Face does not have",
      given=f"penalty_form = {decoding.get('penalty_form', 'gnmt')!r}, of which generation_config.json has no form",
      try_="DECODING = {..., 'penalty_form': 'power'}, or 'length_penalty': 0, in the model's config.gin",
    )


def keep_template(origin: Path, folder: Path) -> None:
  """Copies the chat template of a Hugging Face folder."""
  if (origin / _TEMPLATE).is_file():
    (folder / _TEMPLATE).write_text((origin / _TEMPLATE).read_text(encoding="utf-8"), encoding="utf-8")
  elif (path := origin / "tokenizer_config.json").is_file():
    if isinstance(template := read_json(path).get("chat_template"), str):
      (folder / _TEMPLATE).write_text(template, encoding="utf-8")


def ends_of(folder: Path) -> list[int]:
  """Returns the ids that end an output of the model of a folder."""
  for name in (FILE, "config.json"):
    if (folder / name).is_file():
      if ends := _ends(read_json(folder / name)):
        return ends
  return []


def _ends(hf: Mapping[str, Any]) -> list[int]:
  found = hf.get("eos_token_id")
  return [token for token in (found if isinstance(found, list) else [found]) if type(token) is int]


def _whole(hf: Mapping[str, Any], name: str) -> int | None:
  value = hf.get(name)
  if value is not None and (type(value) is not int or not 0 <= value < _MOST):
    raise ValueError(f"{name}: {str(value)[:60]}")
  return value


def _number(hf: Mapping[str, Any], name: str, default: float) -> float:
  value = default if hf.get(name) is None else hf[name]
  if not is_finite(value):
    raise ValueError(f"{name}: {str(value)[:60]}")
  return float(value)
