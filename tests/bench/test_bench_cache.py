"""The benchmark of cache builders counts the tokens of each, or says why one is missing."""

import pytest

from t5like.bench.cache_build import BuildRate, CacheBench, measure_builds
from t5like.errors import RunError, UserError


def test_rates_and_bad_input():
  rate = BuildRate("x", tokens=3000, cpu_seconds=2.0, start_seconds=5.0, wall_seconds=9.0)
  assert rate.tokens_per_core == 1500 and "1,500 tokens/s per core" in str(rate)
  with pytest.raises(UserError, match="invalid megabytes"):
    next(measure_builds(CacheBench(megabytes=0)))


@pytest.mark.slow  # starts a command
def test_a_builder_that_fails_says_why():
  lines = measure_builds(CacheBench(megabytes=1, workers=1, vocabulary="nosuch"))
  next(lines)
  with pytest.raises(RunError, match="t5like cache failed") as failure:
    next(lines)
  assert failure.value.lines["because"].startswith("error: vocabulary not found")


@pytest.mark.slow  # starts up to six commands
def test_the_local_builder_is_measured():
  lines = measure_builds(CacheBench(megabytes=1, workers=1, vocabulary="t5"))
  assert next(lines) == "1 MB of text in 8 files, 1 processes"
  rate = next(lines)
  assert rate.name == "t5like cache" and 200_000 < rate.tokens < 400_000 and rate.cpu_seconds > 0
