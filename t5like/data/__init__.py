"""From token cache to batches: every batch is a function of (seed, step)."""

from t5like.data.batches import Batches, HostShare, PhaseRows, read_ahead
from t5like.data.builder_lock import sole_builder
from t5like.data.cache import (
  TokenCache,
  cache_folder,
  changed_since_written,
  describe_cache,
  finished_folder,
  open_cache,
)
from t5like.data.cache_builder import PieceLimits, build_cache, forget_attempt, plan_cache, write_cache
from t5like.data.first_tokens import FirstTokens
from t5like.data.label_features import LABEL_FEATURES, LabelEncoder
from t5like.data.labeled_rows import LabeledRows, LabelForm, labeled_rows
from t5like.data.mixture_file import read_mixture, write_mixture
from t5like.data.row_order import PooledOrder
from t5like.data.rows import CorpusRows, ExampleRows, MixtureRows, RowSource, WindowRows
from t5like.data.task_record import TaskRecord, changed_code, read_record

__all__ = [
  "Batches",
  "CorpusRows",
  "ExampleRows",
  "FirstTokens",
  "HostShare",
  "LABEL_FEATURES",
  "LabelEncoder",
  "LabelForm",
  "LabeledRows",
  "MixtureRows",
  "PieceLimits",
  "PooledOrder",
  "RowSource",
  "PhaseRows",
  "TaskRecord",
  "TokenCache",
  "WindowRows",
  "build_cache",
  "cache_folder",
  "changed_code",
  "changed_since_written",
  "describe_cache",
  "finished_folder",
  "forget_attempt",
  "labeled_rows",
  "open_cache",
  "plan_cache",
  "read_ahead",
  "read_mixture",
  "read_record",
  "sole_builder",
  "write_cache",
  "write_mixture",
]
