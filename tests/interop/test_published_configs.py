"""The config.json of published checkpoints matches our gin file of the same name."""

import dataclasses

import gin
import pytest

import t5like.models.configurables  # noqa: F401
from t5like.configuration.search_path import shipped_folder
from t5like.configuration.statements import Permissions, gin_source, read_file
from t5like.interop import hf_bart, hf_gpt, hf_t5
from t5like.interop.decoders import FAMILIES as DECODERS
from t5like.interop.encoders import FAMILIES

# Fields that change neither the parameters nor inference.
FREE = {"dropout_rate", "attention_dropout_rate", "mlp_dropout_rate", "compute_dtype", "scan_layers"}
T5 = {"model_type": "t5", "d_kv": 64, "relative_attention_num_buckets": 32, "layer_norm_epsilon": 1e-06}
GATED = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 8}
GPT = {
  "layer_norm_epsilon": 1e-05,
  "initializer_range": 0.02,
  "resid_pdrop": 0.1,
  "n_embd": 768,
  "n_head": 12,
  "n_layer": 12,
}


def t5(vocab_size: int, d_model: int, d_ff: int, num_heads: int, num_layers: int, **more) -> dict:
  return dict(vocab_size=vocab_size, d_model=d_model, d_ff=d_ff, num_heads=num_heads, num_layers=num_layers) | more


ENCODER = {
  "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2,
  "vocab_size": 30522, "initializer_range": 0.02,
}  # fmt: skip
DEBERTA = ENCODER | {
  "layer_norm_eps": 1e-07, "type_vocab_size": 0, "relative_attention": True, "max_relative_positions": -1,
  "position_biased_input": False, "pos_att_type": "c2p|p2c",
}  # fmt: skip
BART = {
  "model_type": "bart", "activation_function": "gelu", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
  "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
  "max_position_embeddings": 1024, "vocab_size": 50265, "scale_embedding": False, "init_std": 0.02, "pad_token_id": 1,
  "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip
LARGE = {
  "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
  "encoder_attention_heads": 16, "decoder_attention_heads": 16,
}  # fmt: skip
LLAMA = {
  "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "mlp_bias": False,
  "initializer_range": 0.02, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": None, "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 8192, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3_2 = LLAMA | {
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64, "tie_word_embeddings": True,
  "max_position_embeddings": 131072, "rope_scaling": {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
  },
}  # fmt: skip
MISTRAL = {k: v for k, v in LLAMA.items() if not k.endswith("_bias")} | {
  "model_type": "mistral",
  "sliding_window": 4096,
}
OLMO2 = {k: v for k, v in LLAMA.items() if k != "mlp_bias" and k != "attention_bias"} | {"model_type": "olmo2"}
OPT = {
  "model_type": "opt", "activation_function": "relu", "attention_dropout": 0.0, "dropout": 0.1, "init_std": 0.02,
  "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048,
  "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512,
}  # fmt: skip
# The relevant fields of the files on the Hugging Face hub.
PUBLISHED = {
  "t5/small": (hf_t5, T5 | t5(32128, 512, 2048, 8, 6)),
  "t5/11b": (hf_t5, T5 | t5(32128, 1024, 65536, 128, 24, d_kv=128)),
  "t5_1_1/small": (hf_t5, GATED | t5(32128, 512, 1024, 6, 8)),
  "mt5/small": (hf_t5, GATED | t5(250112, 512, 1024, 6, 8, model_type="mt5")),
  "byt5/small": (hf_t5, GATED | t5(384, 1472, 3584, 6, 12, num_decoder_layers=4)),
  "gpt2/small": (
    hf_gpt, GPT | {"model_type": "gpt2", "activation_function": "gelu_new", "vocab_size": 50257, "n_positions": 1024},
  ),
  "gpt1/base": (hf_gpt, GPT | {"model_type": "openai-gpt", "afn": "gelu", "vocab_size": 40478, "n_positions": 512}),
  # With Google's GELU; Hugging Face's file has "gelu", the exact form.
  "bert/base": (
    FAMILIES["bert"],
    {"model_type": "bert", "hidden_act": "gelu_new", "hidden_size": 768, "intermediate_size": 3072,
     "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12,
     "type_vocab_size": 2, "vocab_size": 30522, "initializer_range": 0.02},
  ),
  "roberta/base": (FAMILIES["roberta"], ENCODER | {
    "model_type": "roberta", "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "type_vocab_size": 1,
    "vocab_size": 50265, "pad_token_id": 1}),
  "xlm_roberta/base": (FAMILIES["xlm-roberta"], ENCODER | {
    "model_type": "xlm-roberta", "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "type_vocab_size": 1,
    "vocab_size": 250002, "pad_token_id": 1}),
  "bart/base": (hf_bart, BART),
  "bart/large": (hf_bart, BART | LARGE),
  "mbart/large_50": (hf_bart, BART | LARGE | {"model_type": "mbart", "vocab_size": 250054, "scale_embedding": True}),
  "distilbert/base": (FAMILIES["distilbert"], {
    "model_type": "distilbert", "activation": "gelu", "dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 6,
    "initializer_range": 0.02, "max_position_embeddings": 512, "vocab_size": 30522, "pad_token_id": 0}),
  "albert/base": (FAMILIES["albert"], ENCODER | {
    "model_type": "albert", "hidden_act": "gelu_new", "embedding_size": 128, "num_hidden_groups": 1,
    "inner_group_num": 1, "vocab_size": 30000}),
  "electra/small": (FAMILIES["electra"], ENCODER | {
    "model_type": "electra", "embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024,
    "num_attention_heads": 4}),
  "deberta/base": (FAMILIES["deberta"], DEBERTA | {"model_type": "deberta", "vocab_size": 50265}),
  "deberta_v3/base": (FAMILIES["deberta-v2"], DEBERTA | {
    "model_type": "deberta-v2", "vocab_size": 128100, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True}),
  "xlnet/base": (FAMILIES["xlnet"], {
    "model_type": "xlnet", "attn_type": "bi", "bi_data": False, "clamp_len": -1, "d_head": 64, "d_inner": 3072,
    "d_model": 768, "ff_activation": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "n_head": 12,
    "n_layer": 12, "pad_token_id": 5, "same_length": False, "vocab_size": 32000}),
  "llama/llama3_8b": (DECODERS["llama"], LLAMA),
  "llama/llama3_2_1b": (DECODERS["llama"], LLAMA3_2),
  "mistral/7b": (DECODERS["mistral"], MISTRAL | {
    "rope_theta": 10000.0, "vocab_size": 32000, "max_position_embeddings": 32768}),
  "olmo2/7b": (DECODERS["olmo2"], OLMO2 | {
    "rms_norm_eps": 1e-06, "vocab_size": 100352, "max_position_embeddings": 4096, "intermediate_size": 11008,
    "num_key_value_heads": 32}),
  "opt/350m": (DECODERS["opt"], OPT),
  "bloom/560m": (DECODERS["bloom"], {
    "model_type": "bloom", "attention_dropout": 0.0, "hidden_dropout": 0.0, "hidden_size": 1024, "n_head": 16,
    "n_layer": 24, "vocab_size": 250880, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05}),
}  # fmt: skip
BERT_HEADS = {"pooler.dense.weight", "cls.predictions.transform.dense.weight", "cls.seq_relationship.weight"}
HEADS = {
  "bert": BERT_HEADS,
  "roberta": {"lm_head.dense.weight"},
  "xlm_roberta": {"lm_head.dense.weight"},
  "distilbert": {"vocab_transform.weight"},
  "albert": {"pooler.weight", "predictions.dense.weight", "sop_classifier.classifier.weight"},
  "electra": {"discriminator_predictions.dense.weight"},
  "xlnet": {"lm_loss.bias"},
  "deberta": {"lm_predictions.lm_head.dense.weight"},
  "deberta_v3": {"lm_predictions.lm_head.dense.weight"},
  **dict.fromkeys(("llama", "mistral", "olmo2"), {"lm_head.weight"}),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_config_is_our_gin_file(size):
  family, hf = PUBLISHED[size]
  gin.clear_config()
  text = gin_source(read_file(f"models/{size}.gin", Permissions([shipped_folder()])))
  with gin.unlock_config():
    gin.parse_config(text)
  ours = dataclasses.asdict(gin.query_parameter("%MODEL").scoped_configurable_fn().config)
  gin.clear_config()
  tied = not size.startswith(("t5_1_1", "mt5", "byt5")) and hf.get("tie_word_embeddings") is not False
  names = HEADS.get(size.split("/")[0], BERT_HEADS)
  theirs = dataclasses.asdict(family.config_from_hf(hf, names, tied))
  assert {k: v for k, v in ours.items() if k not in FREE} == {k: v for k, v in theirs.items() if k not in FREE}
  config = family.config_from_hf(hf, names, tied)
  named = family in (*FAMILIES.values(), *DECODERS.values())
  back = family.config_to_hf(config, hf["model_type"]) if named else family.config_to_hf(config)
  kept = {k: v for k, v in hf.items() if k not in ("model_type", "tie_word_embeddings")}
  kept |= {"max_relative_positions": 512, "pos_att_type": ["c2p", "p2c"]} if "pos_att_type" in hf else {}
  assert kept.items() <= back.items(), "config.json both ways"
