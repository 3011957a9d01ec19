"""The table of `t5like bench startup`."""

from t5like.bench.startup import table


def test_time_to_the_first_step_is_the_sum_of_all_before_it():
  spent = {"starting up": 2.0, "compiling": 8.5, "steps": 4.0, "preparing": 1.25, "initializing": 0.25}
  rows = [line.rsplit(maxsplit=2) for line in table(spent).splitlines()]
  assert [(name.strip(), seconds) for name, seconds, _ in rows] == [
    ("starting up", "2.0"), ("preparing", "1.2"), ("initializing", "0.2"), ("compiling", "8.5"),
    ("to the first step", "12.0"), ("steps", "4.0"),
  ]  # fmt: skip
