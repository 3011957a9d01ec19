"""The mapping from logical axes to mesh axes, in one table.

Models name the axes of their parameters and activations; a preset, a column of this table, maps each name to mesh axes.
Rows apply from top to bottom, and an array uses each mesh axis only once. So in activations `batch` uses data and fsdp,
which leaves nothing for `embed`; in parameters, which have no batch, `embed` uses fsdp.

  data_parallel  the model is replicated on every device
  fsdp           parameters and optimizer state are sharded; a layer's parameters are gathered when it runs
  tensor         heads, MLP and vocabulary are sharded; activations between them are replicated
  fsdp_tensor    both; with axes of size 1 it equals any of the above, so it is the default
  sequence       both, and activations between heads and MLPs are sharded by position (Korthikanti et al. 2022): norms,
                 dropout and their saved activations take 1/tensor of the memory, for the same communication
"""

from __future__ import annotations

Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]

COLUMNS = ("data_parallel", "fsdp", "tensor", "fsdp_tensor", "sequence")
_ROWS = ("data", "fsdp")
TABLE = (
  # axis     data_parallel  fsdp    tensor    fsdp_tensor  sequence
  ("batch",  _ROWS,         _ROWS,  _ROWS,    _ROWS,       _ROWS),
  ("vocab",  None,          None,   "tensor", "tensor",    "tensor"),
  ("mlp",    None,          None,   "tensor", "tensor",    "tensor"),
  ("heads",  None,          None,   "tensor", "tensor",    "tensor"),
  ("embed",  None,          "fsdp", None,     "fsdp",      "fsdp"),
  ("length", None,          None,   None,     None,        "tensor"),
  ("kv",     None,          None,   None,     None,        None),
  ("layers", None,          None,   None,     None,        None),
)  # fmt: skip

PRESETS: dict[str, Rules] = {
  name: tuple((row[0], row[column]) for row in TABLE) for column, name in enumerate(COLUMNS, 1)
}
DEFAULT_PRESET = "fsdp_tensor"


def with_experts(rules: Rules, has_axis: bool) -> Rules:
  """Adds the rules of experts to a preset; `has_axis`: whether the mesh has an axis `expert`.

  It shards the experts and, elsewhere, rows; where experts are sharded, rows are sharded by the other axes
  (`expert_rows`), and XLA moves tokens to their experts (all-to-all).
  """
  if any(axis == "expert_rows" for axis, _ in rules):
    return rules
  rows = dict(rules).get("batch")
  added = (("expert_rows", rows), ("expert", "expert" if has_axis else None))
  if has_axis:
    rules = tuple((axis, (*_ROWS, "expert")) if axis == "batch" else (axis, target) for axis, target in rules)
  return (*rules, *added)


def mesh_axes_used(preset: str) -> set[str]:
  """Returns the mesh axes that a preset uses."""
  return {axis for _, target in PRESETS[preset] for axis in ((target,) if isinstance(target, str) else target or ())}


def parameter_mesh_axes(preset: str) -> set[str]:
  """Returns the mesh axes over which a preset shards parameters."""
  return {target for axis, target in PRESETS[preset] if axis not in ("batch", "length") and target is not None}
