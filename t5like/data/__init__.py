"""From token cache to batches: every batch is a function of (seed, step)."""

from t5like.data.cache import TokenCache, cache_folder, changed_since_written, open_cache, write_cache
from t5like.data.loader import CorpusBatches, ExampleBatches, HostShare, evaluation_batches, read_ahead

__all__ = [
  "CorpusBatches",
  "ExampleBatches",
  "HostShare",
  "TokenCache",
  "cache_folder",
  "changed_since_written",
  "evaluation_batches",
  "open_cache",
  "read_ahead",
  "write_cache",
]
