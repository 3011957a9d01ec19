"""Writes tests/data/golden/awd_lstm: a small AWD-LSTM with fastai's names, built from torch.nn.LSTM, and its outputs.

Not a test; needs torch:

    python tests/interop/goldens/make_awd_lstm_goldens.py

weights.pth is a state dict as fastai saves it: recurrent weights as `weight_hh_l0_raw`, tied copies of the embedding.
expected.npz has tokens of two successive batches, the logits of both (the second continues from the states of the
first), and the last layer's states of the first. Made with torch 2.13.
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "awd_lstm"
VOCABULARY, EMBED, HIDDEN, LAYERS = 23, 6, 9, 3


def main() -> None:
  torch.manual_seed(0)
  GOLDEN.mkdir(exist_ok=True)
  encoder = torch.nn.Embedding(VOCABULARY, EMBED)
  widths = [EMBED, *[HIDDEN] * (LAYERS - 1), EMBED]
  rnns = [torch.nn.LSTM(widths[i], widths[i + 1], batch_first=True) for i in range(LAYERS)]
  bias = torch.randn(VOCABULARY)
  tokens, logits, states, first = torch.randint(VOCABULARY, (2, 4, 11)), [], [None] * LAYERS, None
  with torch.no_grad():
    for batch in tokens:
      x = encoder(batch)
      for i, rnn in enumerate(rnns):
        x, states[i] = rnn(x, states[i])
      first = x if first is None else first
      logits.append(x @ encoder.weight.T + bias)
  state = OrderedDict({"0.encoder.weight": encoder.weight, "0.encoder_dp.emb.weight": encoder.weight})
  for i, rnn in enumerate(rnns):
    state[f"0.rnns.{i}.weight_hh_l0_raw"] = rnn.weight_hh_l0
    for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
      state[f"0.rnns.{i}.module.{name}"] = getattr(rnn, name)
    state[f"0.rnns.{i}.module.weight_hh_l0"] = rnn.weight_hh_l0 * 0.5  # as after weight drop
  state |= {"1.decoder.weight": encoder.weight, "1.decoder.bias": bias}
  torch.save(OrderedDict((name, value.detach()) for name, value in state.items()), GOLDEN / "weights.pth")
  np.savez_compressed(GOLDEN / "expected.npz", tokens=tokens, logits=torch.stack(logits), states=first)


if __name__ == "__main__":
  main()
