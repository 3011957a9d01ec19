"""Forecasts of memory, time and cost of a run."""

from t5like.planning.devices import peak_flops
from t5like.planning.flops import train_step_flops
from t5like.planning.forecast import Forecast, State, Work, forecast
from t5like.planning.memory import MemoryEstimate, StateBytes, estimate_memory, state_bytes
from t5like.planning.price import Price, price_of
from t5like.planning.run_card import render_run_card
from t5like.planning.topology import Topology, known_local_topology, parse_topology

__all__ = [
  "Forecast",
  "MemoryEstimate",
  "Price",
  "State",
  "StateBytes",
  "Topology",
  "Work",
  "estimate_memory",
  "forecast",
  "known_local_topology",
  "parse_topology",
  "peak_flops",
  "price_of",
  "render_run_card",
  "state_bytes",
  "train_step_flops",
]
