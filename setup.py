"""Package metadata; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
  line.split('"')[1] for line in (HERE / "t5like/__init__.py").read_text().splitlines() if "__version__" in line
)

setup(
  name="t5like",
  version=VERSION,
  description="Pre-train and fine-tune BERT-, GPT- and T5-style models in JAX, on TPU pods",
  long_description=(HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  # The gin files live at the top of the checkout and travel inside the package.
  packages=[*find_packages(include=["t5like", "t5like.*"]), "t5like.gin"],
  package_dir={"t5like.gin": "gin"},
  package_data={
    "t5like": ["py.typed"],
    "t5like.gin": ["**/*.gin", "**/*.md"],
    "t5like.ablations": ["measured/*.json"],
    "t5like.ablations.report": ["page.css", "page.html"],
    "t5like.evaluation": ["prompts/*"],
    "t5like.inference.inside": ["page.css", "page.html", "page.js"],
    "t5like.tasks": ["embedded/*"],
    "t5like.vocabularies": ["embedded/*"],
  },
  entry_points={"console_scripts": ["t5like=t5like.cli.main:main"]},
  install_requires=[
    "absl-py>=2.1,<3",
    "flax>=0.12,<0.14",
    "gin-config>=0.5,<0.6",
    "grain>=0.2.10,<0.4",
    "jax>=0.10,<0.13",
    "matplotlib>=3.8,<4",
    "numpy>=1.26,<3",
    "optax>=0.2.6,<0.4",
    "orbax-checkpoint>=0.11.30,<0.13",
    "rouge-score>=0.1.2,<0.2",
    "sacrebleu>=2.4,<3",
    "safetensors>=0.5,<1",
    "scipy>=1.11,<2",
    "sentencepiece>=0.2,<0.3",
    "tokenizers>=0.22,<0.24",
    # Only t5like.tasks uses these. tensorflow-datasets needs importlib_resources for GLUE, but does not say so.
    "importlib_resources>=6",
    "seqio>=0.0.20,<0.1",
    "tensorflow>=2.19,<2.23",
    "tensorflow-datasets>=4.9.9,<5",
    "tensorflow-text>=2.19,<2.23",
  ],
  extras_require={
    # What a TPU trains outlives it on gs:// alone.
    "tpu": ["gcsfs>=2026.1,<2028", "jax[tpu]>=0.10,<0.13"],
    "cuda": ["jax[cuda13]>=0.10,<0.13"],
    # Model directories, token caches, vocabularies and corpora on gs://.
    "gcs": ["gcsfs>=2026.1,<2028"],
    "beam": ["apache-beam>=2.70,<3"],  # on Dataflow: apache-beam[gcp]
    "elmo": ["h5py>=3.10,<4"],  # ELMo's published weights
    "hf": ["torch>=2.6,<3", "transformers>=5,<6"],
    "bench": ["torch>=2.6,<3", "transformers>=5,<6"],
    "wandb": ["wandb>=0.19,<1"],
    "test": [
      "gcsfs>=2026.1,<2028",
      "h5py>=3.10,<4",
      "hypothesis>=6.100,<7",
      "jsonschema>=4.18,<5",
      "pytest-xdist>=3.6,<4",
      "pytest>=8,<10",
      "pyyaml>=6,<7",
    ],
  },
)
