"""What a run costs, before it runs."""

from t5like.planning.devices import peak_flops
from t5like.planning.flops import train_step_flops
from t5like.planning.memory import MemoryEstimate, estimate_memory
from t5like.planning.run_card import render_run_card

__all__ = ["MemoryEstimate", "estimate_memory", "peak_flops", "render_run_card", "train_step_flops"]
