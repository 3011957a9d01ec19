"""Examples from arrays of tokens that are padded with zeros."""

import numpy as np

from t5like.data.layouts import Examples
from t5like.objectives import Ragged


def padded_examples(inputs, targets):
  """Returns one example per row of two arrays [rows, length], in which 0 is not a token."""
  inputs, targets = (Ragged(rows, np.count_nonzero(rows, axis=1)) for rows in (inputs, targets))
  return Examples(inputs, targets, len(inputs.lengths))
