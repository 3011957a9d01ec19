"""The page of attention weights, and words in context. Parity with transformers: interop/test_hf_inside.py."""

import base64
import json
import re

import numpy as np
import pytest
from browser import Browser, find_chromium
from infer_models import folder_of, golden, words
from tokenizers import Tokenizer, models, pre_tokenizers

from t5like.errors import UserError
from t5like.inference import load
from t5like.inference.batch_inference import InferenceSettings
from t5like.inference.inside.page import PageLimits, attention_page
from t5like.inference.inside.page_file import write_attention_page
from t5like.inference.results import Attention

T5 = golden("t5_1_1")
PIECES = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "the", "river", "bank", "##er", "##s", "money", "old", "."]


@pytest.fixture(scope="module")
def bert(tmp_path_factory, use_devices):
  """A BERT with a vocabulary of pieces of words."""
  folder = folder_of("bert", tmp_path_factory.mktemp("inside") / "bert", eos=2, cls=1, sep=2, mask=3)
  tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  tokenizer.save(str(folder / "tokenizer.json"))
  named = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", unk_token="[UNK]")
  (folder / "tokenizer_config.json").write_text(json.dumps(named))
  with use_devices(1):
    return load(folder)


@pytest.fixture(scope="module")
def t5(tmp_path_factory, use_devices):
  with use_devices(1):
    return load(folder_of("t5_1_1", tmp_path_factory.mktemp("inside") / "t5", eos=T5["eos"]))


def data_of(page: str) -> list[dict]:
  return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["texts"]


def weights_of(kind: dict) -> np.ndarray:
  shape = [len(kind[name]) for name in ("layers", "heads", "queries", "keys")]
  return (np.frombuffer(base64.b64decode(kind["data"]), np.uint8).reshape(shape) / 255.0) ** 2


def random_attention(layers: int, heads: int, tokens: int, word: str = "w") -> Attention:
  weights = np.random.default_rng(0).dirichlet(np.ones(tokens), (layers, heads, tokens)).astype(np.float32)
  return Attention([f"{word}{i}" for i in range(tokens)], encoder=weights)


def test_the_page_has_the_weights_and_escapes_tokens():
  attention = random_attention(2, 3, 4, "</script><b>")
  page = attention_page("<bert>", [("a text", attention)])
  assert page.count("</script>") == 2 and "<title>Attention of &lt;bert&gt;</title>" in page
  assert not re.search(r'(src|href)="(?!data:,)', page) and "default-src 'none'" in page
  (text,) = data_of(page)
  (kind,) = text["kinds"]
  assert kind["queries"] == kind["keys"] == attention.tokens and kind["label"] == "Encoder" and kind["note"] == ""
  assert (kind["layers"], kind["heads"]) == ([1, 2], [1, 2, 3])
  np.testing.assert_allclose(weights_of(kind), attention.encoder, atol=0.004)


def test_a_page_of_long_texts_is_bounded_and_says_so():
  limits = PageLimits(texts=3, tokens=20, layers=2, heads=2, weights=2_000)
  found = [(f"text {n} " + "x" * 200, random_attention(5, 3, 30)) for n in range(4)]
  page = attention_page("bert", found, limits, left_out=6)
  texts = data_of(page)
  assert len(texts) == 1 and "9 more texts are left out: the page has the first 1." in page
  assert len(texts[0]["title"]) == 80
  kind = texts[0]["kinds"][0]
  assert kind["note"] == "The page is limited: it shows 2 of 5 layers, 2 of 3 heads, 20 of 30 queries, 20 of 30 keys."
  assert kind["layers"] == [3, 5] and kind["heads"] == [1, 2]
  np.testing.assert_allclose(weights_of(kind), found[0][1].encoder[[2, 4], :2, :20, :20], atol=0.004)
  narrow = data_of(attention_page("bert", found, PageLimits(weights=5 * 3 * 49)))[0]["kinds"][0]
  assert len(narrow["keys"]) == 7


def test_a_decoder_reads_the_target_of_a_row_or_what_it_generates(t5, tmp_path):
  rows, file, path = T5["rows"][:2], tmp_path / "rows.jsonl", tmp_path / "page.html"
  lines = [{"inputs": words(rows[0]["text"]), "targets": "w8 w9"}, {"inputs": words(rows[1]["text"])}]
  file.write_text("".join(json.dumps(line) + "\n" for line in lines))
  assert write_attention_page(t5, InferenceSettings(input=str(file)), str(path)) == 0
  given, generated = data_of(path.read_text())
  assert [kind["label"] for kind in given["kinds"]] == ["Encoder", "Decoder", "Decoder to encoder"]
  assert given["kinds"][2]["queries"] == ["w0", "w8", "w9"] and given["kinds"][2]["keys"][-1] == f"w{T5['eos']}"
  greedy = rows[1]["greedy"]
  end = greedy.index(T5["eos"]) if T5["eos"] in greedy else len(greedy)
  assert generated["kinds"][1]["queries"][: end + 1] == words([0, *greedy[:end]]).split()
  with pytest.raises(UserError, match="exists"):
    write_attention_page(t5, InferenceSettings(input=str(file)), str(path))


def test_words_are_found_by_the_mean_of_their_pieces(bert):
  texts = ["the bankers river .", "old money", "the river bank"]
  query = "the old banks ."
  states = [found.encoder for found in bert.hidden_states([query, *texts])]
  places = [("the", 0, 0, [1]), ("bankers", 0, 4, [2, 3, 4]), ("river", 0, 12, [5]), ("old", 1, 0, [1]),
            ("money", 1, 4, [2]), ("the", 2, 0, [1]), ("river", 2, 4, [2]), ("bank", 2, 10, [3])]  # fmt: skip
  for layer in (0, 1, -1):
    vectors = np.stack([states[1 + text][layer][at].mean(0) for _, text, _, at in places])
    own = states[0][layer][[3, 4]].mean(0)
    cosines = vectors @ own / np.linalg.norm(vectors, axis=1) / np.linalg.norm(own)
    found = bert.word_neighbors("banks", texts, in_text=query, layer=layer, top=4)
    for near, at in zip(found, np.argsort(-cosines)[:4], strict=True):
      assert (near.word, near.number, near.start) == places[at][:3] and near.text == texts[near.number]
      assert near.similarity == pytest.approx(cosines[at], abs=1e-5)
  (same,) = bert.word_neighbors("money", ["money"], top=3)
  assert same.similarity == pytest.approx(1.0, abs=1e-5)


def test_words_of_a_truncated_text_keep_their_places(tmp_path, use_devices):
  with use_devices(1):
    gpt = load(folder_of("gpt2", tmp_path / "gpt2", eos=41))
  text = words(range(10, 34))  # 24 words, 20 positions: a decoder keeps the end
  states = gpt.hidden_states(text, truncate=True)
  assert states.tokens == words(range(14, 34)).split()
  (near,) = gpt.word_neighbors("w20", [words([20])], in_text=text, top=1, truncate=True)
  own, other = states.decoder[-1][6], gpt.hidden_states("w20").decoder[-1][0]
  assert near.similarity == pytest.approx(own @ other / np.linalg.norm(own) / np.linalg.norm(other), abs=1e-5)
  with pytest.raises(UserError, match="not among the tokens that are left"):
    gpt.word_neighbors("w10", ["w20"], in_text=text, truncate=True)


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(word="money", in_text="the bank"), "'money' is not a word of the text"),
    (dict(word="bank", layer=3), "layer=3 is invalid"),
    (dict(word="bank", top=0), "top=0 is invalid"),
    (dict(word="bank", texts="the bank"), "a list of texts"),
  ],
)
def test_invalid_words_and_layers_are_rejected(bert, options, message):
  with pytest.raises(UserError, match=message):
    bert.word_neighbors(**{"texts": ["the bank"]} | options)


def test_the_commands(bert, t5like, tmp_path):
  file, rows, page = tmp_path / "texts.txt", tmp_path / "rows.jsonl", tmp_path / "page.html"
  file.write_text("the river bank\nold money\n")
  rows.write_text(json.dumps({"inputs": "the old bank", "word": "bank"}) + "\n")
  done = t5like(
    "infer", f"--model={bert.folder}", f"--input={rows}", "--word", f"--neighbors={file}", "--top=2", "--layer=1"
  )
  (answer,) = [json.loads(line) for line in done.stdout.splitlines()]
  expected = bert.word_neighbors("bank", ["the river bank", "old money"], "the old bank", layer=1, top=2)
  assert [(n["word"], n["line"], n["start"]) for n in answer["neighbors"]] == [
    (n.word, n.number + 1, n.start) for n in expected
  ]
  assert answer["word"] == "bank" and answer["neighbors"][0]["similarity"] == pytest.approx(expected[0].similarity)
  t5like("infer", f"--model={bert.folder}", f"--input={file}", f"--attention={page}")
  assert [text["title"] for text in data_of(page.read_text())] == ["the river bank", "old money"]
  for wrong, message in (
    (["--word=bank"], "--neighbors"),
    (["--layer=2"], "--word"),
    (["--attention=p", "--output=o"], "page"),
  ):
    done = t5like("infer", f"--model={bert.folder}", f"--input={file}", *wrong, status=2)
    assert message in done.stderr


@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium")
@pytest.mark.parametrize("width, dark", [(390, True), (1280, False)], ids=["phone, dark", "desktop, light"])
def test_the_page_works_in_a_browser(width, dark, tmp_path):
  page = tmp_path / "page.html"
  attention = random_attention(2, 3, 5)
  page.write_text(attention_page("bert", [("one", attention), ("two", random_attention(2, 3, 40))]))
  with Browser() as browser:
    browser.show(page, width, dark=dark)
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.evaluate("document.querySelectorAll('#heads button').length") == 6
    browser.evaluate("document.querySelector('#heads button[tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowDown"):
      for kind in ("keyDown", "keyUp"):
        browser.command("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key})
    assert browser.evaluate("document.getElementById('head-heading').textContent") == "Encoder, layer 2, head 2"
    browser.evaluate("document.querySelectorAll('#queries button')[1].focus()")
    shown = browser.evaluate("[...document.querySelectorAll('#keys small')].map(e => e.textContent)")
    assert [int(text.rstrip("%") or 0) for text in shown] == pytest.approx(100 * attention.encoder[1, 1, 1], abs=1)
    assert browser.requests == [page.as_uri()] and browser.errors == []
