"""PTX instructions inside of Pallas's Triton kernels, where XLA compiles arithmetic to more instructions."""

import struct
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton


def inline_ptx(instructions: str, constraints: str, arguments: Sequence[jax.Array], pack: int = 1) -> jax.Array:
  """Applies instructions to `pack` entries of the arguments at a time; returns float32."""
  result = [jax.ShapeDtypeStruct(arguments[0].shape, jnp.float32)]
  return triton.elementwise_inline_asm(
    instructions, args=list(arguments), constraints=constraints, pack=pack, result_shape_dtypes=result
  )[0]


def literal(number: float) -> str:
  """Formats a float32 as a PTX literal."""
  return f"0f{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"
