"""Every gin file builds its model, with the published parameter counts.

Counts come from shapes, so that even XXL is cheap.
"""

import dataclasses

import flax.linen as nn
import gin
import jax
import numpy as np
import pytest

import t5like.models.configurables  # noqa: F401
from t5like.configuration.search_path import shipped_folder
from t5like.configuration.statements import Permissions, gin_source, read_file
from t5like.models import BERT, GPT, T5, TransformerConfig, XLNet
from t5like.models.recurrent import AWDLSTM, ELMo

ROOT = shipped_folder()
# T5_FACTS section 1: T5 paper and T5 1.1 release; BERT (encoder and pooler); GPT-2 release.
PUBLISHED = {
  "t5/small": 60_506_624, "t5/base": 222_903_552, "t5/large": 737_668_096,
  "t5_1_1/small": 76_961_152, "t5_1_1/base": 247_577_856, "t5_1_1/large": 783_150_080,
  "t5_1_1/xl": 2_849_757_184, "t5_1_1/xxl": 11_135_332_352,
  "bert/base": 109_482_240, "bert/large": 335_141_888, "bert/tiny": 4_385_920, "bert/mini": 11_170_560,
  "bert/small": 28_763_648, "bert/medium": 41_373_184,
  "gpt2/small": 124_439_808, "gpt2/medium": 354_823_168, "gpt2/large": 774_030_080, "gpt2/xl": 1_557_611_200,
  "gpt1/base": 116_534_784, "mt5/small": 300_176_768,
  "bert/multilingual": 177_853_440, "bert/minilm_l6": 22_713_216, "bert/minilm_l12": 33_360_000,
  "albert/base": 11_683_584, "albert/large": 17_683_968, "albert/xlarge": 58_724_864, "albert/xxlarge": 222_595_584,
  "electra/small": 13_483_008, "electra/base": 108_891_648, "electra/large": 334_092_288,
  "electra/base_generator": 33_511_168,
  "deberta/base": 138_601_728, "deberta/large": 405_163_008,
  "deberta_v3/xsmall": 70_682_112, "deberta_v3/small": 141_304_320, "deberta_v3/base": 183_831_552,
  "deberta_v3/large": 434_012_160, "deberta_v3/v2_xlarge": 884_593_152,
  "xlnet/base": 116_718_336, "xlnet/large": 360_268_800,
  "distilbert/base": 66_362_880, "spanbert/base": 108_310_272,
  "roberta/base": 124_645_632, "roberta/large": 355_359_744, "roberta/distil": 82_118_400,
  "xlm_roberta/base": 278_043_648, "xlm_roberta/large": 559_890_432,
  "bart/base": 139_420_416, "bart/large": 406_291_456, "mbart/large": 610_851_840, "mbart/large_50": 610_879_488,
  "llama/llama2_7b": 6_738_415_616, "llama/llama2_13b": 13_015_864_320, "llama/llama2_70b": 68_976_648_192,
  "llama/llama3_8b": 8_030_261_248, "llama/llama3_70b": 70_553_706_496, "llama/llama3_1_8b": 8_030_261_248,
  "llama/llama3_2_1b": 1_235_814_400, "llama/llama3_2_3b": 3_212_749_824,
  "mistral/7b": 7_241_732_096, "mistral/7b_v0_3": 7_248_023_552,
  "olmo2/1b": 1_484_916_736, "olmo2/7b": 7_298_617_344, "olmo2/13b": 13_716_198_400,
  "opt/125m": 125_239_296, "opt/350m": 331_196_416, "opt/1.3b": 1_315_758_080, "opt/13b": 12_853_473_280,
  "bloom/560m": 559_214_592, "bloom/7b1": 7_069_016_064, "bloom/176b": 176_247_271_424,
  # By arithmetic: 12 layers * width^2 + 13 layers * width + 2 width + (50257 + 2048) width.
  "gpt3/small": 125_226_240, "gpt3/175b": 174_604_259_328,
}  # fmt: skip
# Families whose published counts include a pooler that most of their checkpoints do not have.
WITH_POOLER = ("roberta", "xlm_roberta")
SIZES = sorted(
  str(p.relative_to(ROOT / "models").with_suffix(""))
  for p in (ROOT / "models").glob("*/*.gin")
  if p.stem != p.parent.name
)
ARCHITECTURES = sorted(p.stem for p in (ROOT / "models/t5/architectures").glob("*.gin"))


@pytest.fixture(autouse=True)
def clean_gin():
  yield
  gin.clear_config()


def model_of(*files: str):
  gin.clear_config()
  with gin.unlock_config():
    gin.parse_config("\n".join(gin_source(read_file(f"models/{name}.gin", Permissions([ROOT]))) for name in files))
  return gin.query_parameter("%MODEL").scoped_configurable_fn()


def shapes_of(model):
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  return nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))["params"]


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts(size):
  model = model_of(size)
  assert type(model) in (T5, BERT, GPT, XLNet, AWDLSTM, ELMo)
  if isinstance(model.config, TransformerConfig):
    # A scanned stack is traced as one layer; other tests check that it has the parameters of an unrolled one.
    model = model.clone(config=dataclasses.replace(model.config, scan_layers=True))
  shapes = shapes_of(model)
  # The published counts exclude BERT's pre-training heads and ELMo's softmax.
  heads = ("logits_dense", "output_bias") if isinstance(model, ELMo) else ("mlm_head", "nsp_head", "discriminator_head")
  total = count(shapes) - sum(count(shapes.get(head, {})) for head in heads)
  if size in PUBLISHED:
    width = model.config.embed_dim
    pooler = width * width + width if size.startswith(WITH_POOLER) else 0
    assert total + pooler == PUBLISHED[size]
  header = (ROOT / "models" / f"{size}.gin").read_text()
  rounded = f"{total / 1e6:.1f}M" if total < 1e9 else f"{total / 1e9:.2f}B" if total < 1e10 else f"{total / 1e9:.1f}B"
  assert rounded in header or size == "t5/tiny", f"the header should say {rounded}"


def test_every_published_size_has_a_file():
  assert set(PUBLISHED) <= set(SIZES)


@pytest.fixture(scope="module")
def base():
  """Returns shapes by layer: the gin files do not scan layers."""
  return shapes_of(model_of("t5/base"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_table_2_architectures(base, architecture):
  """T5 paper, table 2: other arrangements of the baseline's blocks, counted by hand."""
  model = model_of("t5/base", f"t5/architectures/{architecture}")
  shapes = shapes_of(model)
  embedding, encoder, decoder = (count(base[part]) for part in ("token_embedder", "encoder", "decoder"))
  layer = count(base["encoder"]["layers_0"]) + count(base["decoder"]["layers_0"])
  expected = {
    "shared": embedding + decoder,
    "six_layers": embedding + encoder + decoder - 6 * layer,
    "lm": embedding + encoder,  # without cross-attention, a decoder has the parameters of an encoder
    "prefix_lm": embedding + encoder,
  }
  layouts = {"lm": "decoder", "prefix_lm": "prefix_lm"}
  assert count(shapes) == expected[architecture]
  assert model.batch_layout == layouts.get(architecture, "encoder_decoder")
