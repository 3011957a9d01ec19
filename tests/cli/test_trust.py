"""A model directory is untrusted data: reading it runs no code and accesses no other files."""

import http.server
import json
import sys
import threading

import pytest

ROWS = '{"inputs": "the cat purrs", "targets": "cat"}\n'


@pytest.fixture
def untrusted(old_directories, monkeypatch):
  """An untrusted model directory, with a module that leaves a trace when it is imported."""
  folder = old_directories / "finetuned"
  (folder / "evil.py").write_text(f"open({str(old_directories / 'trace')!r}, 'w')\n")
  (old_directories / "rows.jsonl").write_text(ROWS)
  monkeypatch.syspath_prepend(str(old_directories))
  yield folder
  assert not (old_directories / "trace").exists()
  for module in ("finetuned.evil", "finetuned", "pets"):
    sys.modules.pop(module, None)


def prepend(untrusted, line: str) -> None:
  config = untrusted / "config.gin"
  config.write_text(f"{line}\n{config.read_text()}")


COMMANDS = [
  ["infer", "--model=finetuned", "--input=rows.jsonl", "--score"],
  ["eval", "--model_dir=finetuned", "--task=pets"],
  ["eval", "--model_dir=finetuned", "--loss", "--text=corpus.jsonl"],
  ["convert", "to_hf", "finetuned", "exported"],
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_imports_modules_named_in_a_model_directory(t5like, untrusted, command):
  prepend(untrusted, "import finetuned.evil")
  refused = t5like(*command, status=2).stderr
  assert "imports 'finetuned.evil'" in refused and "--task_modules=finetuned.evil" in refused
  assert "finetuned.evil" not in sys.modules


@pytest.mark.parametrize(
  ("line", "expected"),
  [
    ("from __gin__ import dynamic_registration", "would run its code"),
    ("from finetuned import evil", "would run its code"),
    ("import t5like.finetuned.evil", "would run its code"),
    ("include '/etc/passwd'", "which is not one of t5like's gin files"),
    ("include '../secret.gin'", "which is not one of t5like's gin files"),
    ("include 'finetuned/more.gin'", "gin file not found"),
    ("include 'gs://bucket/x.gin'", "which is not one of t5like's gin files"),
    ("X = @gin.singleton()\ntrain.seed = %X", "which is not part of t5like"),
    ("X = " + "[" * 100_000, "gin syntax error" if sys.version_info >= (3, 12) else "gin cannot parse"),
    ("X = " + "9" * 10_000, "gin syntax error"),
    ("#" + "x" * (1 << 20), "too large"),
  ],
)
def test_a_configuration_cannot_import_include_or_exhaust_memory(t5like, untrusted, old_directories, line, expected):
  (old_directories / "secret.gin").write_text("a secret = 1\n")
  (untrusted / "more.gin").write_text("import finetuned.evil\n")
  prepend(untrusted, line)
  refused = t5like("infer", "--model=finetuned", "--input=rows.jsonl", "--score", status=2).stderr
  assert expected in refused and "a secret" not in refused and "root:" not in refused


def test_an_include_in_a_string_is_text(t5like, untrusted):
  """gin's own parser would read the second line as an include."""
  config = untrusted / "config.gin"
  config.write_text(
    config.read_text().replace("WANDB_PROJECT = ''", "WANDB_PROJECT = '''\ninclude \"/etc/passwd\"\n'''")
  )
  assert "score" in t5like("infer", "--model=finetuned", "--input=rows.jsonl", "--score").stdout


def test_a_module_is_imported_if_the_user_names_it(t5like, untrusted, old_directories):
  (old_directories / "mine.py").write_text("import gin\n\n\n@gin.configurable\ndef one():\n  return 1\n")
  prepend(untrusted, "import mine\nOTHER = @one()\ntrain.seed = %OTHER")
  command = ["infer", "--model=finetuned", "--input=rows.jsonl", "--score"]
  assert "imports 'mine'" in t5like(*command, status=2).stderr
  assert "score" in t5like(*command, "--task_modules=mine").stdout
  sys.modules.pop("mine")


def test_task_modules_and_token_caches_come_from_the_command_line(t5like, untrusted):
  """The run was trained with TASK_MODULES = ['pets'] and CACHE_DIR = 'tokens'."""
  command = ["eval", "--model_dir=finetuned", "--task=pets", "--again", "--show=0"]
  refused = t5like(*command, "--cache_dir=elsewhere", status=2).stderr
  assert "no task 'pets'" in refused and "--cache_dir=tokens --task_modules=pets" in refused
  assert "pets" not in sys.modules
  scored = t5like(*command, "--cache_dir=tokens").stdout  # the module is not needed with a cache
  assert "accuracy 0.00" in scored and "pets" not in sys.modules


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "function",
  [
    "pty:spawn",
    "os:system",
    "finetuned.evil:nothing",
    "t5like.tasks.metrics:np.load",
    "t5like.tasks.metrics:__builtins__.exec",
    "t5like.files.storage:remove_tree",
    "t5like.tasks.registry:import_modules",
    "seqio.metrics:os.system",
    "metrics",
    7,
  ],
)
def test_a_token_cache_cannot_name_arbitrary_functions(t5like, untrusted, old_directories, function):
  (manifest,) = old_directories.glob("tokens/pets/*/validation/cache.json")
  content = json.loads(manifest.read_text())
  content["scoring"]["metrics"] = [{"function": function, "keywords": {}}]
  manifest.write_text(json.dumps(content))
  refused = t5like("eval", "--model_dir=finetuned", "--task=pets", "--again", "--cache_dir=tokens", status=2).stderr
  assert "scoring function" in refused or "cannot import" in refused


def test_predictions_cannot_name_arbitrary_functions(t5like, untrusted):
  (about,) = untrusted.glob("predictions/*.scores.json")
  about.write_text(json.dumps({"scores": {}, "metrics": [{"function": "os:system", "keywords": {}}]}))
  assert "scoring function os:system" in t5like("eval", "--compare", "finetuned", "finetuned", status=2).stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["../../../../../etc/passwd", "/etc/passwd", "", 3])
def test_a_token_cache_stays_in_its_folder(t5like, untrusted, old_directories, name):
  (manifest,) = old_directories.glob("tokens/pets/*/validation/cache.json")
  content = json.loads(manifest.read_text())
  content["shards"][0]["name"] = name
  manifest.write_text(json.dumps(content))
  refused = t5like("eval", "--model_dir=finetuned", "--task=pets", "--again", "--cache_dir=tokens", status=2).stderr
  assert "the manifest of the token cache is corrupt" in refused


def test_urls_in_a_model_directory_are_not_fetched(t5like, untrusted):
  requests = []

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      requests.append(self.path)
      self.send_error(404)

    do_HEAD = do_GET

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  url = f"http://127.0.0.1:{server.server_port}/spiece.model"
  config = untrusted / "config.gin"
  config.write_text(config.read_text().replace("VOCABULARY = 'tiny'", f"VOCABULARY = '{url}'"))
  refused = t5like("infer", "--model=finetuned", "--input=rows.jsonl", "--score", status=2).stderr
  server.shutdown()
  assert f"--vocabulary={url}" in refused and not requests
