"""The full circle on a machine with torch: transformers writes, we read, write, and transformers reads again."""

from pathlib import Path

import jax
import numpy as np
import pytest

from t5like.interop import huggingface

torch = pytest.importorskip("torch", reason="the live comparison needs torch: pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CLASSES = {
  "t5_1_0": "T5ForConditionalGeneration", "t5_1_1": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration",
  "byt5": "T5ForConditionalGeneration", "bert": "BertForPreTraining", "gpt2": "GPT2LMHeadModel",
  "gpt1": "OpenAIGPTLMHeadModel", "gpt_nano_sort": "GPT2LMHeadModel",
}  # fmt: skip


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", CLASSES)
def test_exported_folder_loads_and_agrees(case, scan_layers, tmp_path):
  imported = huggingface.load(GOLDEN / case, scan_layers=scan_layers)
  huggingface.save(tmp_path, imported.model, imported.params, imported.model_type)
  theirs, info = getattr(transformers, CLASSES[case]).from_pretrained(tmp_path, output_loading_info=True)
  assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info

  rng = np.random.default_rng(0)

  def ids(length):
    return rng.integers(1, imported.model.config.vocab_size, (2, length)).astype(np.int32)

  tokens, decoder = ids(11), ids(9)
  if imported.model.batch_layout == "encoder_decoder":
    batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": decoder}
    given = {"input_ids": tokens, "decoder_input_ids": decoder}
  else:
    layout = "encoder" if imported.model.batch_layout == "encoder" else "decoder"
    batch, given = {f"{layout}_input_tokens": tokens}, {"input_ids": tokens}
  with torch.no_grad():
    out = theirs.eval()(**{name: torch.tensor(x, dtype=torch.long) for name, x in given.items()})
  expected = out.prediction_logits if case == "bert" else out.logits
  ours = jax.jit(lambda p: imported.model.apply({"params": p}, batch)["logits"])(imported.params)
  np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-4)
