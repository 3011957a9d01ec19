"""Folders of Hugging Face's peft, read and written: same logits (see make_peft_goldens.py)."""

import dataclasses
import json
import shutil
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5like.errors import UserError
from t5like.finetuning.methods import IA3, HoulsbyAdapter, LoRA, PrefixTuning
from t5like.inference.parameters.peft_export import export_peft
from t5like.inference.parameters.peft_import import import_peft
from t5like.interop import huggingface
from t5like.interop.hf_heads import head_of_task
from t5like.interop.layouts import expected_shapes, flatten, stack_layers, unflatten, unstack_layers
from t5like.interop.peft_files import HFModule, PeftFolder, join_low_rank, matches, read_folder
from t5like.models.heads import ClassificationHead, RegressionHead, SpanHead, attach_head

pytestmark = pytest.mark.usefixtures("one_device")

ALL_OF_C_ATTN = r".*attention/(query|key|value)"
GOLDEN = Path(__file__).parents[2] / "data" / "golden"
CASES = sorted(path.name for path in (GOLDEN / "peft").iterdir())
DEFAULT = ("llama_prefix", "gpt2_lora", "gpt2_prefix", "gpt2_prompt", "gpt2_saved", "t5_ia3", "t5_saved")


def outputs(case):
  golden = dict(np.load(GOLDEN / "peft" / case / "outputs.npz"))
  return golden | {"base": str(golden["base"])}


def logits(model, params, golden):
  tokens = golden["input_ids"].astype(np.int32)
  batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
  if "decoder_input_ids" in golden:
    batch["decoder_input_tokens"] = golden["decoder_input_ids"].astype(np.int32)
  found = jax.jit(lambda params: model.apply({"params": params}, batch))(params)
  return np.asarray(found["label_logits" if "label_logits" in found else "logits"])


def tuned(model, params, trained):
  """Returns the tuned model and its parameters."""
  arrays = stack_layers(trained.arrays) if model.config.scan_layers else trained.arrays
  return trained.method.tune(model), unflatten(flatten(params) | arrays)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in DEFAULT else [pytest.mark.slow]) for c in CASES])
def test_a_folder_of_peft_gives_its_logits_and_is_written_again(case, tmp_path):
  golden, folder = outputs(case), read_folder(GOLDEN / "peft" / case)
  imported = huggingface.load(GOLDEN / golden["base"], scan_layers=case in ("gpt2_lora", "gpt2_prefix", "t5_ia3"))
  trained = import_peft(folder, imported.model, unstack_layers(flatten(imported.params)))
  model, params = tuned(imported.model, imported.params, trained)
  found = logits(model, params, golden)
  expected = golden["logits"][:, -found.shape[1] :] if found.ndim == 3 else golden["logits"]  # without a prompt's
  np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)
  assert not np.allclose(found, logits(imported.model, imported.params, golden), atol=1e-3)
  export_peft(tmp_path, imported.model, jax.tree.map(np.asarray, params), trained.method, golden["base"])
  old, new = (load_file(path / "adapter_model.safetensors") for path in (GOLDEN / "peft" / case, tmp_path))
  assert old.keys() == new.keys()
  for name in old:  # the keys of a prefix are turned by rotary positions, there and back
    np.testing.assert_allclose(new[name], old[name], rtol=0, atol=1e-6 if case == "llama_prefix" else 0)
  config = json.loads((tmp_path / "adapter_config.json").read_text())
  same = ("peft_type", "task_type", "token_dim", "num_attention_heads", "num_layers", "num_virtual_tokens")
  assert {name: config.get(name) for name in same} == {name: folder.config.get(name) for name in same}
  saved, modules = folder.config.get("modules_to_save"), config.get("modules_to_save")
  assert bool(saved) == bool(modules) and all(matches(saved, module) for module in modules or ())
  again = import_peft(read_folder(tmp_path), imported.model)
  np.testing.assert_allclose(logits(*tuned(imported.model, imported.params, again), golden), found, atol=1e-6)


def test_a_classifiers_adapter_brings_the_head_that_its_base_lacks(tmp_path):
  golden, folder = outputs("bert_lora"), read_folder(GOLDEN / "peft" / "bert_lora")
  shutil.copytree(GOLDEN / golden["base"], tmp_path / "base")
  config = json.loads((tmp_path / "base/config.json").read_text())
  (tmp_path / "base/config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
  tensors = load_file(tmp_path / "base/model.safetensors")
  kept = {name: x for name, x in tensors.items() if not name.startswith("classifier.")}
  save_file(kept, tmp_path / "base/model.safetensors")
  base = huggingface.load(tmp_path / "base")
  head = head_of_task(base.model, "SEQ_CLS", folder.tensors)
  assert isinstance(head, ClassificationHead) and len(head.labels) == golden["logits"].shape[1]
  model = attach_head(base.model, head)
  arrays = {f"backbone/{path}": x for path, x in unstack_layers(flatten(base.params)).items()}
  trained = import_peft(folder, model, arrays)
  found = logits(trained.method.tune(model), unflatten(arrays | trained.arrays), golden)
  np.testing.assert_allclose(found, golden["logits"], atol=2e-5, rtol=2e-5)
  assert head_of_task(base.model, "SEQ_CLS", {}) is None and head_of_task(base.model, None, folder.tensors) is None
  one = {"classifier.weight": np.zeros((1, 4))}
  assert isinstance(head_of_task(base.model, "SEQ_CLS", one), RegressionHead)
  t5 = huggingface.load(GOLDEN / "t5_1_1").model
  assert isinstance(head_of_task(t5, "QUESTION_ANS", {"qa_outputs.weight": np.zeros((2, 4))}), SpanHead)


def test_separate_updates_of_query_and_value_share_gpt2s_c_attn(tmp_path):
  """Without an A in common, ranks add up; the key's rows are zero."""
  golden = outputs("gpt2_lora")
  imported = huggingface.load(GOLDEN / "gpt2")
  method = LoRA(rank=2, alpha=4.0)
  model = method.tune(imported.model)
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), {"decoder_input_tokens": np.ones((1, 1), np.int32)}))
  shapes = flatten(shapes["params"])
  own = {path: rng.normal(size=box.unbox().shape).astype(np.float32) for path, box in shapes.items() if "lora" in path}
  params = unflatten(flatten(imported.params) | own)
  export_peft(tmp_path, imported.model, params, method, "gpt2")
  folder = read_folder(tmp_path)
  assert folder.config["r"] == 4 and folder.config["lora_alpha"] == 8 and folder.config["fan_in_fan_out"]
  back = tuned(imported.model, imported.params, import_peft(folder, imported.model))
  np.testing.assert_allclose(logits(*back, golden), logits(model, params, golden), atol=2e-5)


def test_join_low_rank_by_hand():
  a, b = np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]])
  joined_a, joined_b = join_low_rank([(a, b), None], 2)
  assert joined_a.tolist() == [[1, 2]] and joined_b.tolist() == [[3], [4], [0], [0]]
  shared_a, stacked_b = join_low_rank([(a, b), (a, 2 * b)], 2)
  assert shared_a.tolist() == [[1, 2]] and stacked_b.tolist() == [[3], [4], [6], [8]]
  own_a, apart_b = join_low_rank([(a, b), (-a, 2 * b)], 2)
  assert own_a.tolist() == [[1, 2], [-1, -2]] and apart_b.tolist() == [[3, 0], [4, 0], [0, 6], [0, 8]]


def test_the_order_of_outputs_by_head():
  """Ours: the query's two heads of one output, then the key's and the value's. Theirs: by head, as in BLOOM."""
  module = HFModule("query_key_value", ("query", "key", "value"), fan_in_fan_out=False, heads=2)
  theirs = module.in_their_order(np.arange(6))
  assert theirs.tolist() == [0, 2, 4, 1, 3, 5] and module.in_our_order(theirs).tolist() == list(range(6))


def test_what_peft_cannot_express_is_refused(tmp_path):
  imported = huggingface.load(GOLDEN / "gpt2")
  with pytest.raises(UserError, match="no counterpart of HoulsbyAdapter"):
    export_peft(tmp_path, imported.model, imported.params, HoulsbyAdapter(), "gpt2")
  folder = read_folder(GOLDEN / "peft" / "gpt2_lora")
  trained = tuned(imported.model, imported.params, import_peft(folder, imported.model))[1]
  with pytest.raises(UserError, match="cannot train transformer.h.0.attn.c_attn both as a whole and by LoRA"):
    export_peft(tmp_path, imported.model, trained, LoRA(rank=2, targets=[ALL_OF_C_ATTN], also=[".*bias"]), "gpt2")
  with pytest.raises(UserError, match="unties transformer.wte.weight from the matrices"):
    also = LoRA(rank=2, targets=[ALL_OF_C_ATTN], also=["token_embedder/embedding"])
    export_peft(tmp_path, imported.model, trained, also, "gpt2")
  with pytest.raises(UserError, match=r"do not belong to this model|has no LoRA"):
    import_peft(read_folder(GOLDEN / "peft" / "t5_lora"), imported.model)
  xlnet, update = huggingface.load(GOLDEN / "peft_bases/xlnet"), np.zeros((12, 2), np.float32)
  path = "backbone/encoder/layers_0/attention/query"
  trained = unflatten(flatten(xlnet.params) | {f"{path}/lora_a": update, f"{path}/lora_b": update.T})
  with pytest.raises(UserError, match="linear layers, which .*attention/query is not"):
    export_peft(tmp_path, xlnet.model, trained, LoRA(rank=2), "xlnet")
  with pytest.raises(UserError, match="bias = 'all' is not supported"):
    import_peft(dataclasses.replace(folder, config={**folder.config, "bias": "all"}), imported.model)
  saved = {"transformer.wte.weight": "unties transformer.wte.weight", "transformer.ln_f.weight": "the size of the base"}
  for name, message in saved.items():
    with pytest.raises(UserError, match=message):
      import_peft(dataclasses.replace(folder, tensors={**folder.tensors, name: np.zeros(2)}), imported.model)
  with pytest.raises(UserError, match="init_lora_weights = 'pissa_niter_4' is not supported"):
    changed = {**folder.config, "init_lora_weights": "pissa_niter_4"}
    import_peft(dataclasses.replace(folder, config=changed), imported.model)
  with pytest.raises(UserError, match="no adapter_config.json"):
    read_folder(tmp_path)


@pytest.mark.parametrize(
  ("case", "settings", "tensors", "message"),
  [
    ("t5_dora", {"use_dora": False}, {}, "has a magnitude, but use_dora = False"),
    ("t5_lora", {"use_dora": True}, {}, "has no magnitude, but use_dora = True"),
    ("t5_lora", {"r": 7}, {}, "has rank 2, but the peft folder's settings say 7"),
    ("t5_lora", {"r": "two"}, {}, "has rank 2, but"),
    ("t5_lora", {"lora_alpha": None}, {}, "invalid lora_alpha in the peft folder: None"),
    ("t5_lora", {}, {"decoder.block.0.layer.0.SelfAttention.q.lora_B.weight": None}, r"no .*\.q\.lora_B\.weight"),
    ("t5_lora", {}, {"decoder.block.0.layer.0.SelfAttention.q.lora_B.weight": np.nan}, "values that are not finite"),
  ],
)  # fmt: skip
def test_a_folder_that_contradicts_itself_is_refused(case, settings, tensors, message, tmp_path):
  config = json.loads((GOLDEN / "peft" / case / "adapter_config.json").read_text()) | settings
  (tmp_path / "adapter_config.json").write_text(json.dumps(config))
  saved = load_file(GOLDEN / "peft" / case / "adapter_model.safetensors")
  for name, value in tensors.items():
    tensor = saved.pop(f"base_model.model.{name}")
    saved |= {} if value is None else {f"base_model.model.{name}": np.full_like(tensor, value)}
  save_file(saved, tmp_path / "adapter_model.safetensors")
  with pytest.raises(UserError, match=message):
    import_peft(read_folder(tmp_path), huggingface.load(GOLDEN / "t5_1_1").model)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"rank_pattern": [1]}, r"invalid rank_pattern in .*adapter_config.json: \[1\]"),
    ({"rank_pattern": {"q": "y"}}, r"invalid rank_pattern\['q'\] in .*: y"),
    ({"alpha_pattern": {"q": [1]}}, r"invalid alpha_pattern\['q'\] in .*: \[1\]"),
    ({"lora_alpha": float("inf")}, "invalid lora_alpha in .*: inf"),
    ({"lora_alpha": 10**400}, "invalid lora_alpha in .*: 1000"),
    ({"lora_alpha": True}, "invalid lora_alpha in .*: True"),
    ({"lora_dropout": "x"}, "invalid lora_dropout in .*: x"),
    ({"task_type": []}, r"invalid task_type in .*: \[\]"),
    ({"feedforward_modules": 5}, "invalid feedforward_modules in .*: 5"),
    ({"rank_pattern": {"(": 2}}, r"unsupported expression in .*: '\('"),
    ({"rank_pattern": {"((.*)*)*X": 2}}, r"unsupported expression in .*\n.*it repeats a group"),
    ({"alpha_pattern": {".*.*.*.*.*X": 2}}, r"unsupported expression in .*\n.*more than 4 parts"),
    ({"feedforward_modules": "a" * 501}, r"unsupported expression in .*\n.*it is too long"),
  ],
)  # fmt: skip
def test_settings_of_an_adapter_are_checked(settings, message, tmp_path):
  shutil.copytree(GOLDEN / "peft/t5_lora", tmp_path, dirs_exist_ok=True)
  config = json.loads((tmp_path / "adapter_config.json").read_text()) | settings
  (tmp_path / "adapter_config.json").write_text(json.dumps(config))
  with pytest.raises(UserError, match=message):
    read_folder(tmp_path)


def test_expressions_for_modules_are_read_as_peft_does(tmp_path):
  shutil.copytree(GOLDEN / "peft/t5_lora", tmp_path, dirs_exist_ok=True)
  config = json.loads((tmp_path / "adapter_config.json").read_text())
  patterns = {r"block\.\d+\.layer\.0\.SelfAttention\.(q|v)": 6, "v": 7}
  (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"alpha_pattern": patterns}))
  method = import_peft(read_folder(tmp_path), huggingface.load(GOLDEN / "t5_1_1").model).method
  assert {method.alpha, *method.alphas.values()} == {4.0, 6.0, 7.0}  # the queries of cross-attention have the default


def test_a_tensor_that_is_a_single_number_is_refused(tmp_path):
  shutil.copytree(GOLDEN / "peft/t5_lora", tmp_path, dirs_exist_ok=True)
  saved = load_file(tmp_path / "adapter_model.safetensors")
  save_file(saved | {min(saved): np.ones((), np.float32)}, tmp_path / "adapter_model.safetensors")
  with pytest.raises(UserError, match="lora_A.weight in .*adapter_model.safetensors is a single number"):
    read_folder(tmp_path)


@pytest.mark.parametrize("setting", [{"alora_invocation_tokens": [5]}, {"use_bdlora": {"nblocks": 2}}])
def test_lora_that_acts_in_another_way_is_refused(setting):
  folder = read_folder(GOLDEN / "peft" / "gpt2_lora")
  with pytest.raises(UserError, match=f"peft's {next(iter(setting))} = .* is not supported"):
    import_peft(dataclasses.replace(folder, config=folder.config | setting), huggingface.load(GOLDEN / "gpt2").model)


@pytest.mark.parametrize("case", ["t5_lora", "t5_ia3"])
def test_an_adapter_of_a_base_of_another_width_is_refused(case):
  folder = read_folder(GOLDEN / "peft" / case)
  cut = {name: x[:, :-1] if "lora_A" in name else x[:-1] if "ia3" in name else x for name, x in folder.tensors.items()}
  with pytest.raises(UserError, match="the peft folder does not fit the base at .*\n  given"):
    import_peft(dataclasses.replace(folder, tensors=cut), huggingface.load(GOLDEN / outputs(case)["base"]).model)


def test_the_shape_of_a_vector_says_what_it_scales():
  """peft compares the ends of names: `o` in feedforward_modules is also `wo`."""
  folder = read_folder(GOLDEN / "peft" / "t5_ia3")
  model = huggingface.load(GOLDEN / outputs("t5_ia3")["base"]).model
  other = dataclasses.replace(folder, config=folder.config | {"feedforward_modules": ["q"]})
  assert import_peft(other, model).method == import_peft(folder, model).method


def test_feedforward_modules_are_written_so_that_peft_does_not_take_others_for_them(tmp_path):
  imported = huggingface.load(GOLDEN / "t5_1_1")
  method = IA3(targets=[".*/mlp/wo"], feedforward=[".*attention/out"])
  base = flatten(imported.params)
  ones = {path: np.ones(shape, np.float32) for path, shape in expected_shapes(method.tune(imported.model)).items()}
  export_peft(tmp_path, imported.model, unflatten(ones | base), method, "t5")
  config = json.loads((tmp_path / "adapter_config.json").read_text())
  assert config["target_modules"] == ["o", "wo"]
  ends, modules = tuple(config["feedforward_modules"]), [name[:-6] for name in read_folder(tmp_path).tensors]
  assert {name.rpartition(".")[2] for name in modules if name.endswith(ends)} == {"o"}


def test_peft_s_copy_of_an_output_matrix_must_be_that_of_the_base():
  folder, imported = read_folder(GOLDEN / "peft" / "t5_lora"), huggingface.load(GOLDEN / "t5_1_1")
  base = unstack_layers(flatten(imported.params))
  copy = {"lm_head.base_layer.weight": np.asarray(base["logits_dense/kernel"]).T}
  again = import_peft(dataclasses.replace(folder, tensors=folder.tensors | copy), imported.model, base)
  assert again.method == import_peft(folder, imported.model).method
  changed = {name: x + 1 for name, x in copy.items()}
  with pytest.raises(UserError, match=r"lm_head.base_layer.weight of the peft folder differs from the base's"):
    import_peft(dataclasses.replace(folder, tensors=folder.tensors | changed), imported.model, base)


def test_the_tensors_say_which_modules_are_excluded():
  """As peft writes it for target_modules = ["q", "v"], exclude_modules = ["encoder.*"]."""
  folder, model = read_folder(GOLDEN / "peft" / "t5_lora"), huggingface.load(GOLDEN / "t5_1_1").model
  kept = {name: tensor for name, tensor in folder.tensors.items() if not name.startswith("encoder.")}
  assert kept and len(kept) < len(folder.tensors)
  config = {**folder.config, "exclude_modules": "encoder.*"}
  trained = import_peft(dataclasses.replace(folder, config=config, tensors=kept), model)
  everywhere = import_peft(folder, model).arrays
  assert trained.arrays.keys() == {path for path in everywhere if not path.startswith("encoder/")}
  assert set(expected_shapes(trained.method.tune(model))) - set(expected_shapes(model)) == trained.arrays.keys()


def test_the_pooler_has_a_lora_too():
  """peft's target_modules = ["dense"] includes it; its update changes the labels as it does by hand."""
  imported = huggingface.load(GOLDEN / "heads" / "BertForSequenceClassification")
  rng = np.random.default_rng(0)
  width = imported.model.config.embed_dim
  a, b = (rng.normal(size=size).astype(np.float32) for size in ((2, width), (width, 2)))
  config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["pooler.dense"]}
  folder = PeftFolder(config, {f"bert.pooler.dense.lora_{name}.weight": x for name, x in (("A", a), ("B", b))})
  found, params = tuned(imported.model, imported.params, import_peft(folder, imported.model))
  merged = flatten(imported.params)
  merged["backbone/pooler/kernel"] = merged["backbone/pooler/kernel"] + 2 * (b @ a).T
  golden = {"input_ids": np.array([[2, 5, 7, 3]])}
  np.testing.assert_allclose(
    logits(found, params, golden), logits(imported.model, unflatten(merged), golden), atol=1e-5
  )


def test_a_truncated_file_is_named(tmp_path):
  shutil.copytree(GOLDEN / "peft/t5_lora", tmp_path / "cut")
  weights = tmp_path / "cut/adapter_model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-50])
  with pytest.raises(UserError, match="adapter_model.safetensors is a truncated or damaged safetensors file"):
    read_folder(tmp_path / "cut")


def test_prompts_and_prefixes_that_peft_reads_differently_are_refused(tmp_path):
  t5, gpt = (huggingface.load(GOLDEN / name).model for name in ("t5_1_1", "gpt2"))
  with pytest.raises(UserError, match="prefixes go to peft and back for GPT only"):
    export_peft(tmp_path, t5, {}, PrefixTuning(length=3), "t5")
  prefix, prompt = (read_folder(GOLDEN / "peft" / name) for name in ("gpt2_prefix", "gpt2_prompt"))
  with pytest.raises(UserError, match="for GPT only"):
    import_peft(prefix, t5)
  alibi = gpt.clone(config=dataclasses.replace(gpt.config, positions="alibi", max_positions=None))
  with pytest.raises(UserError, match="with learned or rotary positions"):
    import_peft(prefix, alibi)
  with pytest.raises(UserError, match="second part for the decoder"):
    import_peft(dataclasses.replace(prompt, config={**prompt.config, "num_transformer_submodules": 2}), gpt)
  with pytest.raises(UserError, match="has the shape"):
    import_peft(dataclasses.replace(prompt, config={**prompt.config, "num_virtual_tokens": 4}), gpt)
  bert = huggingface.load(GOLDEN / "heads/BertForSequenceClassification").model
  with pytest.raises(UserError, match="without a head"):
    import_peft(prompt, bert)


def test_a_projected_prefix_is_written_as_keys_and_values(tmp_path):
  golden, imported = outputs("gpt2_prefix"), huggingface.load(GOLDEN / "gpt2")
  method = PrefixTuning(length=3, hidden=4)
  model = method.tune(imported.model)
  params = nn.unbox(jax.jit(model.init)(jax.random.key(0), {"decoder_input_tokens": np.ones((1, 1), np.int32)}))[
    "params"
  ]
  params = unflatten(flatten(params) | flatten(imported.params))
  export_peft(tmp_path, imported.model, jax.tree.map(np.asarray, params), method, "gpt2")
  back = tuned(imported.model, imported.params, import_peft(read_folder(tmp_path), imported.model))
  np.testing.assert_allclose(logits(*back, golden), logits(model, params, golden), atol=2e-5)
