"""The Python API gives the same answers as `t5like infer`, for any batch and after saving."""

import json
import re
import shutil
import sys

import flax.linen as nn
import huggingface_hub
import jax
import numpy as np
import pytest
from infer_models import golden, golden_folders, words
from safetensors.numpy import save_file

from t5like import parallel
from t5like.decoding import Decoded
from t5like.errors import UserError
from t5like.inference import Choice, Generator, Output, load
from t5like.inference.converting import ImportSettings, import_checkpoint
from t5like.inference.heads.no_answer import with_threshold
from t5like.inference.memory import MemoryCheckedFunction
from t5like.inference.tuned_conversions import TunedSettings, from_peft, merge_model
from t5like.interop import huggingface
from t5like.models import T5 as T5Model
from t5like.models import TransformerConfig
from t5like.models.heads import SpanHead, WithHead
from t5like.training.records.metrics import MetricWriter
from t5like.vocabularies import vocabulary_path

T5, GPT2, BERT = golden("t5_1_1"), golden("gpt2"), golden("bert")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  return golden_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def models(folders, use_devices):
  with use_devices(1):
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture
def infer(folders, t5like, tmp_path):
  """Returns the rows of `t5like infer` for texts, or for rows with fields."""

  def answers(name, rows, *options):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = tmp_path / ("in.txt" if isinstance(rows[0], str) else "in.jsonl")
    path.write_text("".join(line + "\n" for line in lines))
    done = t5like("infer", f"--model={folders[name]}", f"--input={path}", *options)
    return [json.loads(line) for line in done.stdout.splitlines()]

  return answers


def texts_of(made) -> list[str]:
  return [words(row["text"]) for row in made["rows"]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, made", [("t5", T5), ("gpt2", GPT2)])
@pytest.mark.parametrize("settings", [{}, {"beams": 3}, {"temperature": 0.7, "seed": 5}], ids=str)
def test_generated_text_equals_that_of_the_command(models, infer, name, made, settings, capfd):
  found = models[name].generate(texts_of(made), max_length=6, **settings)
  assert capfd.readouterr().out == ""
  rows = infer(name, texts_of(made), "--max_length=6", *(f"--{k}={v}" for k, v in settings.items()))
  assert [o.text for o in found] == [row["outputs"][0]["text"] for row in rows]
  expected = [Output(**row["outputs"][0]) for row in rows]
  assert [(o.tokens, o.finished) for o in found] == [(o.tokens, o.finished) for o in expected]
  np.testing.assert_allclose([o.score for o in found], [o.score for o in expected], rtol=1e-5)


@pytest.mark.slow
def test_one_text_gives_one_result(models):
  (text, *_), t5 = texts_of(T5), models["t5"]
  assert isinstance(t5.generate(text, max_length=4), Output)
  assert t5.generate([text], max_length=4) == [t5.generate(text, max_length=4)]
  assert [type(o) for o in t5.generate(text, max_length=4, samples=2)] == [Output, Output]
  assert len(t5.generate([text], max_length=4, beams=3, n_best=2)[0]) == 2
  assert isinstance(t5.score(text, "w5"), float) and t5.embed(text).shape == (16,)
  assert [type(c) for c in t5.rank(text, ["w5", "w6"])] == [Choice, Choice]
  assert t5.generate([]) == [] and t5.embed([]).shape == (0, 16)


def test_a_prompt_may_contain_the_end_of_earlier_turns(models):
  end = words([GPT2["eos"]])
  found = models["gpt2"].generate(f"w3 w4 {end} w5 w6", max_length=5)
  assert found.tokens == 5 and len(found.text.split()) == 5
  assert models["gpt2"].generate(f"w3 {end}", max_length=5).text.split()


def test_outputs_end_at_every_end_of_sequence_of_the_configuration(models, folders, tmp_path):
  text = texts_of(GPT2)[0]
  full = models["gpt2"].generate(text, max_length=6).text.split()
  other = full[-1]
  folder = shutil.copytree(folders["gpt2"], tmp_path / "two_ends")
  ends = {"eos_token_id": [GPT2["eos"], int(other[1:])]}
  (folder / "generation_config.json").write_text(json.dumps(ends))
  found = load(folder).generate(text, max_length=6)
  assert found.text.split() == full[: full.index(other)] and found.finished
  for search in ({}, {"beams": 2}):
    longer = load(folder).generate(text, max_length=6, min_length=6, **search).text.split()
    assert len(longer) == 6 and other not in longer


def test_conversions_keep_decoding_settings_and_all_ends(folders, tmp_path):
  """Also those of a base that peft's adapters were trained on."""
  text, folder = texts_of(GPT2)[0], shutil.copytree(folders["gpt2"], tmp_path / "folder")
  full = load(folder).generate(text, max_length=9).text.split()
  ends = [GPT2["eos"], int(full[3][1:])]
  settings = {"eos_token_id": ends, "max_new_tokens": 9, "repetition_penalty": 1.1}
  (folder / "generation_config.json").write_text(json.dumps(settings))
  (folder / "chat_template.jinja").write_text("{{ messages }}")
  model, adapter = load(folder), tmp_path / "adapter"
  adapter.mkdir()
  config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}
  (adapter / "adapter_config.json").write_text(json.dumps(config | {"task_type": "CAUSAL_LM"}))
  name, width = "base_model.model.transformer.h.0.attn.c_attn", model.config.embed_dim
  matrices = {"lora_A": np.ones((2, width), np.float32), "lora_B": np.zeros((3 * width, 2), np.float32)}
  save_file({f"{name}.{part}.weight": x for part, x in matrices.items()}, adapter / "adapter_model.safetensors")
  import_checkpoint(ImportSettings(folder, tmp_path / "imported"))
  from_peft(adapter, folder, tmp_path / "tuned")
  merge_model(TunedSettings(tmp_path / "tuned", tmp_path / "merged"))
  merge_model(TunedSettings(tmp_path / "tuned", tmp_path / "merged_hf"), hugging_face=True)
  model.save(tmp_path / "saved")
  load(tmp_path / "imported").save_hf(tmp_path / "exported")
  expected = model.generate(text)
  assert expected.finished and expected.text.split() == full[: full.index(f"w{ends[1]}")]
  for kept in ("imported", "tuned", "merged", "merged_hf", "saved", "exported"):
    again = load(tmp_path / kept)
    assert again.decoding == model.decoding and again.generate(text) == expected, kept
  base = load(folder, adapters={"tuned": tmp_path / "tuned"})
  used = base.use("tuned")
  assert used.generate(text) == expected and used.use(None) is base.use(None) is base
  for kept in ("merged_hf", "exported"):
    assert json.loads((tmp_path / kept / "generation_config.json").read_text())["eos_token_id"] == ends
  assert (tmp_path / "merged_hf/chat_template.jinja").is_file()


def test_samples_do_not_depend_on_their_number(models):
  """Each sample reads only what it wrote itself."""
  text = texts_of(GPT2)[0]
  many = models["gpt2"].generate(text, samples=5, max_length=8, seed=3)
  assert many[:2] == models["gpt2"].generate(text, samples=2, max_length=8, seed=3)
  assert len({one.text for one in many}) == 5


def test_one_beam_has_one_output(models):
  with pytest.raises(UserError, match="n_best"):
    models["gpt2"].generate("w3", beams=1, n_best=3)


def test_the_longest_sequence_that_may_not_repeat_may_be_longer_than_the_output(models):
  expected = models["gpt2"].generate("w3 w4", max_length=4)
  assert models["gpt2"].generate("w3 w4", max_length=4, no_repeat_ngram=100_000) == expected


def test_a_decoders_generation_settings_are_saved(folders, tmp_path):
  folder = shutil.copytree(folders["gpt2"], tmp_path / "folder")
  settings = {"max_new_tokens": 5, "min_new_tokens": 2, "repetition_penalty": 1.8, "no_repeat_ngram_size": 2}
  settings |= {"eos_token_id": [GPT2["eos"], 7], "bad_words_ids": [[5, 6], [8]]}
  (folder / "chat_template.jinja").write_text("{{ messages }}")
  (folder / "generation_config.json").write_text(json.dumps(settings))
  model = load(folder)
  assert len(model.decoding) == 10
  model.save_hf(tmp_path / "saved")
  assert settings.items() <= json.loads((tmp_path / "saved/generation_config.json").read_text()).items()
  assert (tmp_path / "saved/chat_template.jinja").read_text() == "{{ messages }}"
  again = load(tmp_path / "saved")
  assert again.decoding == model.decoding and again.source.configured_eos_ids() == {GPT2["eos"], 7}


def test_beams_of_a_folder_rank_as_in_transformers(models, folders, tmp_path):
  """Also without num_beams in its settings: by the mean over tokens, not with T5X's penalty."""
  text = texts_of(GPT2)[0]
  full = models["gpt2"].generate(text, beams=3, n_best=3, max_length=6)
  same = models["gpt2"].generate(
    text, beams=3, n_best=3, max_length=6, length_penalty=1.0, penalty_form="power", early_stopping="heuristic"
  )
  assert full == same and models["gpt2"].decoding["penalty_form"] == "power"
  folder = shutil.copytree(folders["gpt2"], tmp_path / "folder")
  (folder / "generation_config.json").write_text(json.dumps({"length_penalty": 0.5, "early_stopping": True}))
  other = load(folder)
  assert (other.decoding["length_penalty"], other.decoding["early_stopping"]) == (0.5, "first")
  assert other.generate(text, max_length=6) == models["gpt2"].generate(text, max_length=6)  # greedy


def test_settings_of_a_folder_that_have_no_equivalent_are_named(folders, tmp_path, capsys):
  folder = shutil.copytree(folders["gpt2"], tmp_path / "folder")
  settings = {"begin_suppress_tokens": [3], "guidance_scale": 1.0, "forced_bos_token_id": 4, "penalty_alpha": None}
  (folder / "generation_config.json").write_text(json.dumps(settings))
  assert "forced_first" not in load(folder).decoding  # a decoder's prompt is its beginning
  assert "ignored begin_suppress_tokens = [3]\n" in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, 5, {"text": "a"}, b"a", ["a", None]])
@pytest.mark.parametrize("call", ["generate", "score", "embed"])
def test_what_is_no_text_is_refused(models, call, given):
  with pytest.raises(UserError, match="not a text"):
    getattr(models["gpt2"], call)(given)


@pytest.mark.parametrize("size", [0, -1, "8", 2.5, True])
def test_an_invalid_batch_size_is_refused(models, size):
  for call in (models["bert"].embed, models["gpt2"].score, models["t5"].generate):
    with pytest.raises(UserError, match="batch_size"):
      call(["w3", "w4"], batch_size=size)


def test_texts_may_be_a_generator_and_sizes_numbers_of_numpy(models):
  texts, t5 = ["w3", "w4"], models["t5"]
  ranked = t5.rank((text for text in texts), ["w5", "w6"], batch_size=np.int64(2))
  for choice, expected in zip(sum(ranked, []), sum(t5.rank(texts, ["w5", "w6"]), []), strict=True):
    assert choice.text == expected.text and choice.score == pytest.approx(expected.score, rel=1e-5)


@pytest.mark.parametrize("given", [None, 3, ""])
def test_what_is_no_path_is_refused(given):
  with pytest.raises(UserError, match="not a path of a model"):
    load(given)


@pytest.mark.parametrize("mesh", [3, {"tenser": 2}, {"data": "2"}])
def test_what_is_no_mesh_is_refused(folders, mesh):
  with pytest.raises(UserError, match="invalid mesh"):
    load(folders["t5"], mesh=mesh)


def test_candidates_are_lists(models):
  for candidates in ("bc", 5, [["w3"], 5]):
    with pytest.raises(UserError, match="not a "):
      models["t5"].rank(["w3", "w4"], candidates)


def test_a_model_has_a_short_description(models):
  assert len(repr(models["t5"])) < 300 and "T5" in repr(models["t5"])


def test_stop_texts_end_outputs(models):
  full = models["t5"].generate(texts_of(T5)[0], max_length=6).text.split()
  assert models["t5"].generate(texts_of(T5)[0], max_length=6, stop=full[2]).text.split() == full[:2]
  assert models["t5"].generate(texts_of(T5)[0], max_length=6, stop=None).text.split() == full
  ended = models["t5"].generate(texts_of(T5)[0], max_length=3, stop=full[2])
  assert (ended.tokens, ended.finished) == (2, True)


@pytest.mark.parametrize("stop", ["", ["a", ""], 3, [3]])
def test_invalid_stop_texts_are_refused(models, stop):
  with pytest.raises(UserError, match="stop=") as error:
    models["t5"].generate(texts_of(T5)[0], stop=stop)
  assert "texts that are not empty" in error.value.render()


@pytest.mark.parametrize("search", [{}, {"beams": 3}, {"temperature": 1.0}], ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize("name, made", [("t5", T5), ("gpt2", GPT2)])
def test_forbidden_texts_are_not_generated(models, name, made, search):
  def generate(**more):
    return models[name].generate(texts_of(made)[0], min_length=6, max_length=6, **search, **more).text.split()

  full = generate()
  last, pairs = full[-1], [full[i : i + 2] for i in range(5)]
  one, two = generate(forbidden=last), generate(forbidden=[[int(word[1:]) for word in pairs[-1]]])
  assert last not in one and pairs[-1] not in [two[i : i + 2] for i in range(5)]
  if "beams" not in search:  # the same up to what is forbidden
    at, begin = full.index(last), pairs.index(pairs[-1]) + 1
    assert one[:at] == full[:at] and two[:begin] == full[:begin]


@pytest.mark.parametrize(
  "given, message", [("", "texts of the vocabulary"), ([[]], "nonempty"), ([[10**6]], "outside the vocabulary")]
)
def test_invalid_forbidden_texts_are_refused(models, given, message):
  with pytest.raises(UserError) as error:
    models["t5"].generate(texts_of(T5)[0], forbidden=given)
  assert message in error.value.render()


def test_bad_words_and_suppressed_tokens_of_a_folder_are_forbidden(models, folders, tmp_path):
  text = texts_of(GPT2)[0]
  full = models["gpt2"].generate(text, max_length=6).text.split()
  folder = shutil.copytree(folders["gpt2"], tmp_path / "folder")
  first, other = int(full[0][1:]), 5
  settings = {"bad_words_ids": [[GPT2["eos"]], [other]], "suppress_tokens": [first], "eos_token_id": GPT2["eos"]}
  (folder / "generation_config.json").write_text(json.dumps(settings))
  model = load(folder)
  assert model.decoding["forbidden"] == ((other,), (first,))  # an end alone is no bad word
  assert full[0] not in model.generate(text, max_length=6).text.split()
  assert model.generate(text, max_length=6, forbidden=[]).text.split() == full
  assert full[0] not in model.generate(text, max_length=6, forbidden=[first]).text.split()
  (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": [3]}))
  with pytest.raises(UserError, match="invalid bad_words_ids"):
    load(folder).generate(text)


@pytest.mark.slow
def test_scores_and_rankings_equal_those_of_the_command(models, infer):
  for name, made in (("t5", T5), ("gpt2", GPT2)):
    inputs, targets = texts_of(made), [words(row["target"]) for row in made["rows"]]
    rows = [{"inputs": i, "targets": t, "choices": ["w5", t]} for i, t in zip(inputs, targets, strict=True)]
    scores = models[name].score(inputs, targets)
    np.testing.assert_allclose(scores, [row["log_likelihood"] for row in made["rows"]], atol=2e-4)
    np.testing.assert_allclose(scores, [row["score"] for row in infer(name, rows, "--score")], rtol=1e-5)
    ranked = models[name].rank(inputs, [row["choices"] for row in rows], per_token=True)
    expected = infer(name, rows, "--candidates_field=choices", "--per_token")
    assert [[c.text for c in row] for row in ranked] == [[c["text"] for c in row["ranking"]] for row in expected]
  full = models["gpt2"].score(texts_of(GPT2))
  np.testing.assert_allclose(full, [row["score"] for row in infer("gpt2", texts_of(GPT2), "--score")], rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, made", [("t5", T5), ("gpt2", GPT2), ("bert", BERT)])
def test_embeddings_equal_those_of_the_command(models, infer, name, made):
  found = models[name].embed(texts_of(made))
  expected = [row["embedding"] for row in infer(name, texts_of(made), "--embed=mean")]
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_masks_are_filled_as_by_transformers(models):
  texts, expected = texts_of(BERT)[:2], BERT["rows"][:2]
  for found, row in zip(models["bert"].fill_mask(texts, top=3), expected, strict=True):
    assert [[c.token for c in mask] for mask in found.masks] == [[f"w{i}" for i in m["ids"]] for m in row["masks"]]
    probabilities = [[c.probability for c in mask] for mask in found.masks]
    np.testing.assert_allclose(probabilities, [m["probabilities"] for m in row["masks"]], rtol=1e-4)
    assert f"w{BERT['mask']}" not in found.text.split()


@pytest.mark.slow
def test_t5_fills_sentinels_with_spans(tmp_path, monkeypatch):
  sizes = {"embed_dim": 8, "mlp_dim": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
  module = T5Model(TransformerConfig(vocab_size=4224, **sizes))
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  params = jax.jit(module.init)(jax.random.key(0), batch)["params"]
  (tmp_path / "t5").mkdir()
  huggingface.save(tmp_path / "t5", module, nn.meta.unbox(params))
  shutil.copy(vocabulary_path("tiny"), tmp_path / "t5" / "spiece.model")
  model = load(tmp_path / "t5")
  found = model.fill_mask("a <extra_id_0> cat", top=3)
  assert len(found.masks) == 1 and len(found.masks[0]) == 3 and "extra_id" not in found.text
  with pytest.raises(UserError, match="no <extra_id_0>"):
    model.fill_mask("a cat")

  first, second, third = model.vocabulary.sentinel_ids[:3]
  spans = [model.vocabulary.encode(text) for text in ("small", "sat", "black")]
  outputs = [[first, *spans[0], second, *spans[1], third], [first, *spans[2], second]]
  tokens = np.zeros((1, 2, max(map(len, outputs))), np.int32)
  for n, output in enumerate(outputs):
    tokens[0, n, : len(output)] = output
  scores = np.log(np.array([[0.5, 0.25]], np.float32))
  decoded = Decoded(tokens, np.array([[len(o) for o in outputs]]), scores, scores)
  monkeypatch.setattr(Generator, "texts", lambda *unused: decoded)
  found = model.fill_mask("the <extra_id_0> cat <extra_id_1> here", top=2)
  assert found.text == "the small cat sat here"
  assert [[(c.token, round(c.probability, 4)) for c in mask] for mask in found.masks] == [
    [("small", 0.5), ("black", 0.25)], [("sat", 0.5), ("", 0.25)],
  ]  # fmt: skip


def test_a_batch_of_texts_is_answered_like_each_text_alone(models):
  rng = np.random.default_rng(0)
  texts = [words(rng.integers(5, 55, length)) for length in rng.integers(1, 60, 12)]
  t5 = models["t5"]
  together, vectors, scores = (f(texts, batch_size=8) for f in (few_tokens(t5), t5.embed, scored(t5)))
  for n in rng.permutation(12)[:3]:
    alone = few_tokens(t5)(texts[n])
    assert alone.text == together[n].text and alone.score == pytest.approx(together[n].score, rel=1e-4)
    np.testing.assert_allclose(t5.embed(texts[n]), vectors[n], atol=1e-5)
    assert scored(t5)(texts[n]) == pytest.approx(scores[n], rel=1e-4)


def few_tokens(model):
  return lambda texts, **more: model.generate(texts, max_length=3, **more)


def scored(model):
  """Scores targets of different lengths."""
  return lambda texts, **more: model.score(texts, "w5 w6" if isinstance(texts, str) else ["w5 w6"] * len(texts), **more)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, made", [("t5", T5), ("gpt2", GPT2), ("bert", BERT)])
def test_a_saved_model_answers_as_before(models, name, made, tmp_path, capfd, use_devices):
  model, texts = models[name], texts_of(made)
  assert model.save(tmp_path / "saved") == tmp_path / "saved"
  model.save_hf(tmp_path / "hf")
  with use_devices(1):
    loaded = {folder: load(tmp_path / folder) for folder in ("saved", "hf")}
    loaded["saved"].save(tmp_path / "twice")
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "twice").params, model.params)
  for folder, again in loaded.items():
    assert again.prompt_form == model.prompt_form
    # The tokenizer of a Hugging Face folder has a template for the special tokens around a text.
    assert folder == "hf" or again.vocabulary.fingerprint == model.vocabulary.fingerprint
    np.testing.assert_array_equal(again.embed(texts), model.embed(texts))
    if name == "bert":
      assert again.fill_mask(texts[0]) == model.fill_mask(texts[0])
    else:
      assert again.generate(texts, max_length=5, beams=2) == model.generate(texts, max_length=5, beams=2)
  assert capfd.readouterr().out == ""
  with pytest.raises(UserError, match="is not empty"):
    model.save(tmp_path / "saved")


@pytest.mark.slow
def test_a_saved_run_keeps_its_prompt_format(old_directories, t5like):
  model = load("finetuned")
  model.save("copy")
  copy = load("copy")
  assert copy.experiment.task == model.experiment.task and copy.prompt_form == model.prompt_form
  assert copy.step() == 0 and model.step() == 4 and model.at(4).chosen_step == 4
  scores = model.score(["the cat purrs", "a dog"], ["cat", "dog"])
  assert scores == pytest.approx([-18.014665603637695, -17.000225067138672], abs=1e-4)
  assert copy.score(["the cat purrs", "a dog"], ["cat", "dog"]) == scores
  (old_directories / "in.txt").write_text("the cat purrs\n")
  answers = [t5like("infer", f"--model={m}", "--input=in.txt", "--max_length=4").stdout for m in ("finetuned", "copy")]
  assert answers[0] == answers[1]
  with pytest.raises(UserError, match="no checkpoint of step 3"):
    model.at(3)


def test_a_saved_run_need_not_have_used_all_macros(models, tmp_path):
  """A complete config.gin has only the macros that its run used: one that is not used would be refused."""
  models["t5"].save(tmp_path / "first")
  config = tmp_path / "first/config.gin"
  experiment = load(tmp_path / "first").experiment
  used = re.sub(r"%(INIT_FROM|DECODING)", "None", experiment.config_text)
  config.write_text(re.sub(r"(?m)^(INIT_FROM|DECODING) = .*(\n .*)*$", "", used).replace("train.decoding = None", ""))
  load(tmp_path / "first").save(tmp_path / "second")
  assert load(tmp_path / "second").generate("w3 w4") == models["t5"].generate("w3 w4")


def test_unsupported_requests_are_clear_errors(models, folders):
  with pytest.raises(UserError, match="BERT is an encoder and cannot generate text"):
    models["bert"].generate("w1")
  with pytest.raises(UserError, match="BERT is an encoder"):
    models["bert"].score("w1", "w2")
  with pytest.raises(UserError, match="T5 needs targets to score"):
    models["t5"].score("w1")
  with pytest.raises(UserError, match="cannot fill masks|has no mask token"):
    models["gpt2"].fill_mask("w1")
  with pytest.raises(UserError, match="2 inputs but 1 answers"):
    models["t5"].score(["w1", "w2"], "w3")
  with pytest.raises(UserError, match="unknown pooling 3"):
    models["bert"].embed("w1", pooling=3)
  with pytest.raises(UserError, match="beams=0"):
    models["t5"].generate("w1", beams=0)
  for given, complaint in {
    ("num_beams", 3): "unknown setting num_beams\n +nearest +beams\n", ("bems", 3): "nearest +beams",
    ("max_length", 3.5): "max_length=3.5 is invalid", ("batch_size", 0): "batch_size=0 is invalid",
  }.items():  # fmt: skip
    with pytest.raises(UserError, match=complaint):
      models["t5"].generate("w1", **dict([given]))
  with pytest.raises(UserError, match="not a text: None"):
    models["t5"].embed(["w1", None])
  with pytest.raises(UserError, match="does not cover the devices"):
    load(folders["t5"], mesh={"data": 3})
  long = words(range(1, 30))  # the golden GPT-2 has 20 positions
  with pytest.raises(UserError) as error:
    models["gpt2"].generate(["w1", long])
  assert "texts[1]: too long: 29 tokens" in str(error.value) and "truncate=True" in str(error.value)
  assert models["gpt2"].generate(["w1", long], truncate=True)[1].tokens > 0


def test_a_mesh_changes_no_results_and_functions_keep_their_sharding_rules(models, folders):
  sharded = load(folders["t5"], mesh={"data": 1, "fsdp": 8})
  texts = texts_of(T5)
  assert [o.text for o in sharded.generate(texts, max_length=5)] == [
    o.text for o in models["t5"].generate(texts, max_length=5)
  ]
  seen = []

  def function(x):
    seen.append(parallel.active_rules())
    return x

  with parallel.use_preset("sequence"):
    compiled = MemoryCheckedFunction(function, sharded.mesh)
  with parallel.use_preset("data_parallel"):
    compiled(np.ones((8, 2), np.float32))
  assert len(seen) == 1 and set(parallel.PRESETS["sequence"]) <= set(seen[0])  # and the rules of experts


def test_hub_models_are_downloaded_or_fail_with_a_clear_error(folders, monkeypatch):
  requested = []
  monkeypatch.setattr(
    huggingface_hub, "snapshot_download", lambda name, **unused: requested.append(name) or str(folders["t5"])
  )
  assert load("hf://google/t5").kind == "T5" and requested == ["google/t5"]

  def offline(name, **unused):
    raise OSError("no route to the host\nmore")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
  with pytest.raises(UserError) as error:
    load("hf://google/t5")
  assert "cannot download hf://google/t5" in str(error.value) and "no route to the host" in str(error.value)
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(UserError, match="huggingface_hub, which is not installed"):
    load("hf://google/t5")


def test_the_threshold_for_no_answer_is_that_of_the_checkpoints_evaluation(tmp_path):
  writer = MetricWriter(tmp_path, 0)
  for step, threshold in ((10, 1.5), (20, 2.5)):
    writer.write(step, "eval/squad", {"best_f1_thresh": threshold})
  writer.close()
  backbone = T5Model(TransformerConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=2))
  model = WithHead(backbone, SpanHead())
  found = [with_threshold(model, tmp_path, step).head.no_answer_threshold for step in (10, 20, 30, None)]
  assert found == [1.5, 2.5, None, None]
  own = WithHead(backbone, SpanHead(no_answer_threshold=0.0))
  assert with_threshold(own, tmp_path, 10).head.no_answer_threshold == 0.0
