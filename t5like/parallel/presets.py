"""Which logical axis is split over which mesh axis: one table to audit.

Models name the axes of their parameters and activations; a preset, a column of this table, says what becomes of
each name. An array takes the rows from top to bottom, and each mesh axis once. So on activations `batch` takes
data and fsdp, and nothing is left for `embed`; on parameters, which have no batch, `embed` takes fsdp.

  data_parallel  every device has the whole model
  fsdp           parameters and optimizer state are split; each layer's are gathered when it is their turn
  tensor         heads, MLP and vocabulary are split; activations between them are whole on each device
  fsdp_tensor    both; with axes of size 1 it is any of the above, and so it is the default
  sequence       both, and between heads and MLPs activations are split by position (Korthikanti et al. 2022): norms,
                 dropout and what the backward pass keeps of them cost 1/tensor of the memory, for the same traffic
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


def mesh_axes_of(preset: str) -> set[str]:
  """The mesh axes that a preset makes use of."""
  used = {axis for _, target in PRESETS[preset] for axis in ((target,) if isinstance(target, str) else target or ())}
  return used


def parameter_axes_of(preset: str) -> set[str]:
  """The mesh axes over which it splits parameters: those of any row but the activations' own."""
  return {target for axis, target in PRESETS[preset] if axis not in ("batch", "length") and target is not None}
