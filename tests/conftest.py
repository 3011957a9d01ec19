"""Settings and fixtures of all tests: fake devices, strict numerics, and the command line as a user runs it."""

import importlib.metadata
import os

# Before jax is imported: eight CPU devices, in this process and its children.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Tests compile much and run little: no LLVM optimization halves the time of the suite, and splitting a program would
# only help with idle cores. Without XLA's fusion emitters there is less to compile; jax 0.10 has that flag, 0.12 not.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1" + (
  " --xla_cpu_use_fusion_emitters=false" if importlib.metadata.version("jaxlib").startswith("0.10.") else ""
)
# Many tests and the processes they start compile the same tiny programs, which are cached for the other worker, the
# next run and other checkouts (60 MB; each is removed after a month). The key has the program, the flags and
# jax's version, so that none is ever stale; "none" keeps paths out of the key.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/t5like_tests/compiled"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import types
import unittest.mock
from pathlib import Path

import gin
import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir

from t5like.cli.main import main
from t5like.errors import ERROR_FILE
from t5like.experiments.reading import register_configurables

REPOSITORY = Path(__file__).resolve().parents[1]

gc.disable()  # until all tests are collected: visiting what they import took a sixth of that time

# Compiling the library and rewriting the assertions takes seconds in every process: keep the bytecode, even where
# Python is set not to.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests must not touch the caches of the user who runs them.
os.environ["HOME"] = tempfile.mkdtemp(prefix="t5like-home-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# With two workers on two cores, the time of an example means nothing.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

# JAX lowers every program in an MLIR context of its own, which takes longer than the programs of most tests: they share
# one per thread.
if hasattr(mlir, "make_ir_context"):
  _context_of_thread = functools.cache(lambda _, make=mlir.make_ir_context: make())
  mlir.make_ir_context = lambda: _context_of_thread(threading.get_ident())

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell's background jobs, such as a CI's, ignore Ctrl-C, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A T5 that is small enough to train in seconds.
SMALL_MODEL = [
  "--gin_file=models/t5/tiny.gin", "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=8",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1", "--gin.BATCH_SIZE=8",
]  # fmt: skip


def run_process(*args: object, cwd: Path | None = None, status: int = 0, devices: int = 1):
  """Runs `python -m t5like ...` in a new process with `devices` devices, and checks its exit status."""
  # Safe path: like the installed command, `python -m` does not add the current folder to sys.path.
  env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}
  done = subprocess.run(
    [sys.executable, "-m", "t5like", *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=900
  )
  assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
  return done


def exit_status(arguments: list[str]) -> int:
  try:
    return main(arguments)
  except SystemExit as end:
    return end.code


def start_here(line: list[str], env: dict[str, str] | None = None):
  """Runs in this process what commands start as a child because it needs TensorFlow: `t5like cache`, seqio queries."""
  assert line[:2] == [sys.executable, "-m"]
  if line[2] == "t5like":
    if env and ERROR_FILE in env:
      os.environ[ERROR_FILE] = env[ERROR_FILE]  # which main removes
    return subprocess.CompletedProcess(line, exit_status(line[3:]))
  return subprocess.CompletedProcess(line, importlib.import_module(line[2])._main(json.loads(line[3])))


@contextlib.contextmanager
def children_here():
  with contextlib.ExitStack() as patches:
    for starter in ("token_caches", "seqio_process"):
      here = unittest.mock.patch(f"t5like.experiments.{starter}.subprocess", types.SimpleNamespace(run=start_here))
      patches.enter_context(here)
    yield


all_devices = jax.local_devices


def first_devices(count: int):
  """Returns a context in which jax reports the first `count` of the eight devices, as on a smaller machine."""
  devices = all_devices()[:count]
  listed, counted = (lambda *_, **__: devices), (lambda *_, **__: len(devices))
  return unittest.mock.patch.multiple(
    jax, devices=listed, local_devices=listed, device_count=counted, local_device_count=counted
  )


def run_here(*args: object, status: int = 0, devices: int = 1):
  """Runs the command in this process, which has imported jax and TensorFlow: seconds faster.

  The processes that it would start run here, too.
  """
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.ExitStack() as patches:
    patches.enter_context(first_devices(devices))
    patches.enter_context(children_here())
    code = exit_status([str(a) for a in args])
  assert code == status, f"status {code}\n{out.getvalue()}\n{err.getvalue()}"
  return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def t5like():
  return run_here


@pytest.fixture(scope="session")
def use_devices():
  return first_devices


@pytest.fixture(scope="module")
def one_device():
  """For modules whose runs do not depend on the number of devices: one needs half of the time of eight."""
  with first_devices(1):
    yield


@pytest.fixture
def run_children_here():
  """For calls of functions that start the command: it runs in this process, which has imported TensorFlow."""
  with children_here():
    yield


@pytest.fixture
def t5like_process():
  return run_process


@pytest.fixture(scope="session")
def token_caches(tmp_path_factory) -> Path:
  """The embedded tasks, tokenized by the real command into a folder that tests may add to, but must not change."""
  folder = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:  # shared by all workers: the first one builds it
    folder = folder.parent
  folder = folder / "tokens"
  for task, split in (("novels", "train"), ("snli", "train"), ("snli", "validation")):
    run_here("cache", task, f"--split={split}", "--vocabulary=tiny", f"--out={folder}")
  return folder


@pytest.fixture(scope="session")
def small_model() -> list[str]:
  return SMALL_MODEL


@pytest.fixture(scope="session")
def pretrain(token_caches):
  """The arguments of a pre-training run that takes seconds."""
  return [
    "train", *SMALL_MODEL, "--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin",
    "--gin.LENGTHS={'inputs': 32}", f"--gin.CACHE_DIR={token_caches}", "--gin.LOG_PERIOD=2",
  ]  # fmt: skip


@pytest.fixture(scope="session")
def finetune(token_caches):
  return [
    "train", *SMALL_MODEL, "--gin_file=runs/finetune.gin", "--gin.TASK=snli", "--gin.INIT_FROM=None",
    "--gin.LENGTHS={'inputs': 32, 'targets': 4}", f"--gin.CACHE_DIR={token_caches}", "--gin.EVAL_EXAMPLES=20",
  ]  # fmt: skip


@pytest.fixture
def clean_gin():
  """All configurables are registered; the test's configuration is cleared at its end."""
  register_configurables()
  yield
  gin.clear_config()


@pytest.fixture
def old_directories(tmp_path, monkeypatch) -> Path:
  """Unpacks the files that commit d9cdd99 wrote (tests/data/old_directories) into a folder and changes to it."""
  with tarfile.open(REPOSITORY / "tests/data/old_directories/d9cdd99.tar.xz") as archive:
    archive.extractall(tmp_path)  # our own file; `filter` came with Python 3.11.4
  monkeypatch.chdir(tmp_path)
  return tmp_path


# What changes with the versions of JAX, Flax and Orbax: lowering, scans, sharding, checkpoints, multi-host start-up.
VERSION_SENSITIVE = {
  "kernels/test_attention.py", "kernels/test_norms.py", "models/test_cached_decoding.py", "models/test_layer_loop.py",
  "parallel/test_compiled_graphs.py", "parallel/test_multihost.py", "parallel/test_presets.py",
  "training/checkpoints/test_checkpoints.py", "training/checkpoints/test_checkpoints_failures.py",
  "training/checkpoints/test_checkpoints_restore.py", "training/optimizers/test_optimizers.py", "training/test_step.py",
}  # fmt: skip


def pytest_sessionstart():
  """Removes programs that were compiled more than a month ago; those still in use are compiled again."""
  if "PYTEST_XDIST_WORKER" not in os.environ:
    for path in Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache"):
      if path.stat().st_mtime < time.time() - 30 * 86400:
        path.unlink(missing_ok=True)


def pytest_collection_finish():
  """Makes the garbage collector ignore all modules and tests: visiting their objects took 7% of the time."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 10, 10)
  gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
  cases: dict[str, list[pytest.Item]] = {}
  for item in items:
    if item.nodeid.partition("::")[0].removeprefix("tests/") in VERSION_SENSITIVE:
      item.add_marker(pytest.mark.version_sensitive)
    if item.get_closest_marker("sampled"):
      cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
  for group in cases.values():
    (count,) = group[0].get_closest_marker("sampled").args
    kept = {round(n * (len(group) - 1) / max(count - 1, 1)) for n in range(count)}
    for number, item in enumerate(group):
      if number not in kept:
        item.add_marker(pytest.mark.slow)
