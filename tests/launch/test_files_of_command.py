"""`launch/files_of_command.py`: the local files that a command needs, and those that cannot be sent."""

import importlib.util
import os
import subprocess
import sys
import tarfile

import pytest
from commands import PROJECT, PROJECT_OPTIONS, REPOSITORY, make_project

SCRIPT = REPOSITORY / "launch/files_of_command.py"
_spec = importlib.util.spec_from_file_location("files_of_command", SCRIPT)
files_of_command = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(files_of_command)


class UserFolder:
  """A user's folder, in which the script runs."""

  def __init__(self, folder, capfdbinary):
    self.folder, self._captured = folder, capfdbinary

  def write(self, files):
    for name, text in files.items():
      (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
      (self.folder / name).write_text(text)

  def run(self, *command, options=(), status=0) -> tuple[list[str], str]:
    assert files_of_command.main([*options, "--", "t5like", "train", *command]) == status
    sys.stdout.flush()
    found, messages = self._captured.readouterr()
    return found.decode().splitlines(), messages.decode()

  def found(self, *command, options=()) -> set[str]:
    files, messages = self.run(*command, options=options)
    assert not messages and files == sorted(set(files))
    return set(files)

  def noted(self, *command, options=()) -> str:
    return self.run(*command, options=options)[1]

  def rejected(self, *command, options=()) -> str:
    files, messages = self.run(*command, options=options, status=2)
    assert not files and messages.startswith("error: ")
    return messages


@pytest.fixture
def here(tmp_path, monkeypatch, capfdbinary):
  folder = tmp_path / "here"
  folder.mkdir()
  monkeypatch.chdir(folder)
  return UserFolder(folder, capfdbinary)


def test_a_project(here):
  make_project(here.folder)
  assert here.found(*PROJECT_OPTIONS, options=["--with=my words"]) == set(PROJECT)


@pytest.mark.parametrize(
  "words",
  [
    ["--gin_file=a b.gin"],
    ["--gin_file", "a b.gin"],
    ["--gin_file=./a b.gin"],
    ["--gin_fil=a b.gin"],  # accepted by argparse
    ["--gin.X", "--gin_file=no.gin", "--gin_file=a b.gin"],  # the first one is X's value
    ["--gin_file=gs://bucket/c.gin", "--gin_file=a b.gin", "--gin_file=models/t5/tiny.gin"],
  ],
)
def test_gin_files_of_the_command(here, words):
  here.write({"a b.gin": "SEED = 1"})
  assert here.found(*words) == {"a b.gin"}


@pytest.mark.parametrize(
  "words",
  [
    ["--task_modules=one,p.two"],
    ["--task_modules", "one", "--task_modules=p.two"],
    ["--gin.TASK_MODULES=['one', 'p.two']"],
    ["--gin.TASK_MODULES", '["one","p.two"]'],
    ["--gin.train.task_modules=('one', 'p.two')"],
    ["--gin.TASK_MODULES=one", "--task_modules=p.two"],
    ["--gin_file=list.gin"],
    ["--gin_file=block.gin"],
    ["--gin_file=macro.gin"],
    ["--gin_file=import.gin"],
    ["--gin_file=old.gin", "--gin.TASK_MODULES=['one', 'p.two']"],  # the last one wins
  ],
)
def test_task_modules(here, words):
  gin = {
    "list.gin": "TASK_MODULES = ['one',\n  r'p.two'] # 'not'",
    "block.gin": "train:\n  task_modules = ['one', 'p.two']\n",
    "macro.gin": "TASK_MODULES = %MINE\nMINE = ['one', %TWO]\nTWO = 'p.two'",
    "import.gin": "import one\nfrom p import two\n",
    "old.gin": "TASK_MODULES = ['p.removed']",
  }
  here.write({"one.py": "", "p/__init__.py": "", "p/two.py": "", "p/data.txt": "", **gin})
  assert {f for f in here.found(*words) if f not in gin} == {"one.py", "p/__init__.py", "p/two.py", "p/data.txt"}


def test_includes_are_searched_as_t5like_does(here):
  """The current folder shadows the search paths, which shadow the shipped files, also for includes of shipped files."""
  here.write({
    "a.gin": "include 'b.gin'\ninclude 'a.gin'\ninclude 'runs/pretrain.gin'",
    "extra/b.gin": "include 'c.gin'", "more/b.gin": "", "more/c.gin": "",
    "runs/train.gin": "TASK_MODULES = ['one']", "one.py": "",
  })  # fmt: skip
  assert "runs/train.gin" in (REPOSITORY / "gin/runs/pretrain.gin").read_text()
  found = here.found("--gin_file=a.gin", "--gin_search_paths=extra,more")
  assert found == {"a.gin", "extra/b.gin", "more/c.gin", "runs/train.gin", "one.py"}
  assert "no gin file b.gin" in here.rejected("--gin_file=a.gin")


def test_imports_are_followed_within_the_folder(here):
  here.write({
    "one.py": "import os, two\nfrom three import x\nimport numpy\nimport data\nfrom t5like import tasks",
    "two.py": "def f():\n  from space import four\n", "three/__init__.py": "import five", "three/six.py": "",
    "five.py": "import one", "space/four.py": "from . import seven\nfrom .eight import x", "space/seven.py": "",
    "space/eight.py": "match x:\n  case = broken", "space/nine.py": "", "data/large.bin": "", "t5like/tasks.py": "",
  })  # fmt: skip
  assert here.found("--task_modules=one") == {
    "one.py", "two.py", "three/__init__.py", "three/six.py", "five.py", "space/four.py", "space/seven.py",
    "space/eight.py",
  }  # fmt: skip


def test_missing_modules(here):
  here.write({"p/__init__.py": "", "q.py": "", "data/x.bin": ""})
  for module in ("p.absent", "q.absent"):
    assert f"no module {module}" in here.rejected(f"--task_modules={module}")
  for module in ("absent.tasks", "data"):
    assert f"note: module {module} (TASK_MODULES) is not in" in here.noted(f"--gin.TASK_MODULES=['{module}']")
  assert not here.found("--task_modules=t5like.tasks.template", "--gin.TASK_MODULES=[]")


def test_folders_are_expanded_without_caches_and_through_links(here):
  here.write({"f/a": "", "f/g/b c": "", "f/.git/x": "", "f/__pycache__/y.pyc": "", "f/z.pyc": "", "out/d": ""})
  (here.folder / "f/link").symlink_to(here.folder / "out")
  (here.folder / "f/circle").symlink_to(here.folder / "f")
  assert here.found(options=["--with=f/", "--with=./f/a"]) == {"f/a", "f/g/b c", "f/link/d"}
  (here.folder / "empty").mkdir()
  assert "the folder empty has no files" in here.rejected(options=["--with=empty"])
  here.write({"f/line\nbreak": ""})
  assert "line break" in here.rejected(options=["--with=f"])


@pytest.mark.parametrize(
  ("given", "expected"),
  [
    ("absent.gin", "no gin file absent.gin"),
    ("my_rum.gin", "nearest  my_run.gin"),
    ("models/t5/tinny.gin", "nearest  models/t5/tiny.gin"),
    ("{here}/my_run.gin", "try      --gin_file=my_run.gin"),
    ("{repository}/gin/models/t5/tiny.gin", "try      --gin_file=models/t5/tiny.gin"),
    ("../out.gin", "try      run from its folder: cd {above}, then --gin_file=out.gin"),
    ("conf/../my_run.gin", "try      --gin_file=my_run.gin"),
    ("~/my.gin", "gs://BUCKET/my.gin"),
    ("", "no gin file"),
    ("conf", "no gin file conf"),
    ("open.gin", "cannot read the gin file open.gin"),
    ("includes.gin", "source   include in includes.gin: ../out.gin"),
  ],
)
def test_gin_files_that_would_be_missing_are_rejected(here, given, expected):
  here.write({"my_run.gin": "", "conf/x.gin": "", "../out.gin": "", "open.gin": "X = [1,\n"})
  here.write({"includes.gin": "include '../out.gin'"})
  folders = {"here": here.folder, "above": here.folder.parent, "repository": REPOSITORY}
  assert expected.format(**folders) in here.rejected(f"--gin_file={given.format(**folders)}")


@pytest.mark.parametrize("given", ["absent", "/etc/hostname", "../here", "~"])
def test_paths_that_cannot_be_sent_are_rejected(here, given):
  assert given in here.rejected(options=[f"--with={given}"])


def test_search_paths_elsewhere(here):
  here.write({"../elsewhere/a.gin": ""})
  message = here.rejected("--gin_file=a.gin", "--gin_search_paths=../elsewhere")
  assert "../elsewhere/a.gin would not be found on the workers" in message
  assert here.found("--gin_file=a.gin", "--gin_search_paths=../elsewhere", options=["--shared"]) == {
    "../elsewhere/a.gin"
  }


def test_local_data_is_noted_unless_it_is_sent(here):
  here.write({"tokens/x": "", "text/a.txt": "", "run.gin": "include 'runs/pretrain.gin'\nINIT_FROM = 'tokens'"})
  assert "INIT_FROM: tokens is not sent" in here.noted("--gin_file=run.gin")
  assert "CACHE_DIR: tokens is not sent" in here.noted("--gin.CACHE_DIR=tokens")
  corpus = "--gin.CORPUS_FILES={'train': 'text/*.txt'}"
  assert "--with=text/*.txt" in here.noted(corpus)
  assert here.found(corpus, "--gin.CACHE_DIR=gs://b/tokens", "--gin.INIT_FROM=hf/name", options=["--with=text"])


def test_the_tar_file_depends_only_on_the_content(here, tmp_path):
  here.write({"a b/run.sh": "x", "é.gin": "y"})
  (here.folder / "a b/run.sh").chmod(0o700)

  def packed(name):
    here.found("--gin_file=é.gin", options=["--with=a b", f"--tar={tmp_path / name}"])
    return (tmp_path / name).read_bytes()

  first = packed("1.tar")
  os.utime(here.folder / "é.gin", (1e9, 1e9))
  assert packed("2.tar") == first
  here.write({"é.gin": "z"})
  assert packed("3.tar") != first
  with tarfile.open(tmp_path / "1.tar") as archive:
    assert [(m.name, oct(m.mode), archive.extractfile(m).read()) for m in archive] == [
      ("a b/run.sh", "0o755", b"x"), ("é.gin", "0o644", b"y"),
    ]  # fmt: skip


def test_the_size_is_limited(here):
  here.write({"a": "12345", "b": "123456"})
  options = ["--with=a", "--with=b", "--too_large=leave some out"]
  message = here.rejected(options=[*options, "--limit=10"])
  assert "11 bytes (at most 10)" in message and "b (6), a (5)" in message and "leave some out" in message
  assert here.found(options=[*options, "--limit=11"]) == {"a", "b"}


def test_invalid_options_are_rejected(here):
  for options in (["--wit=x"], ["--with="], ["--shared=yes"], ["--tar"]):
    assert f"invalid option: {options[0]}" in here.rejected(options=options)
  assert "--gin_file has no value" in here.rejected("--gin_file")
  assert files_of_command.main(["--with=x"]) == 2


def test_only_the_standard_library_is_needed(here):
  """Python without site-packages, and a folder with modules that shadow those of the standard library."""
  here.write({"tokenize.py": "raise SystemExit(9)", "a.gin": ""})
  words = [sys.executable, "-I", "-S", SCRIPT, "--", "t5like", "train", "--gin_file=a.gin"]
  assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "a.gin\n"
