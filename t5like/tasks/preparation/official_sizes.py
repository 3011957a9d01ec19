"""Published number of rows of each split, to compare with what was prepared.

From the TFDS catalog (whose builders have no sizes before a download) and the GLUE, SuperGLUE and SQuAD
papers; XSum from its authors, WNUT-17 and C4 from their distributors; SWAG, SICK and STS from theirs (SICK: the sum of
its single file; STS 2013 without SMT, which is not distributed); AllNLI as in sentence-transformers.
"""

from __future__ import annotations

_GLUE = {
  "cola": (8_551, 1_043, 1_063),
  "sst2": (67_349, 872, 1_821),
  "mrpc": (3_668, 408, 1_725),
  "qqp": (363_846, 40_430, 390_965),
  "stsb": (5_749, 1_500, 1_379),
  "qnli": (104_743, 5_463, 5_463),
  "rte": (2_490, 277, 3_000),
  "wnli": (635, 71, 146),
}
_SUPER_GLUE = {
  "boolq": (9_427, 3_270, 3_245),
  "cb": (250, 56, 250),
  "copa": (400, 100, 500),
  "multirc": (27_243, 4_848, 9_693),
  "record": (100_730, 10_000, 10_000),
  "rte": (2_490, 277, 3_000),
  "wic": (5_428, 638, 1_400),
  "wsc": (554, 104, 146),
  "wsc.fixed": (554, 104, 146),
}
_THREE = ("train", "validation", "test")

OFFICIAL_SIZES: dict[str, dict[str, int]] = {
  **{f"glue/{name}": dict(zip(_THREE, sizes, strict=True)) for name, sizes in _GLUE.items()},
  "glue/mnli": {
    "train": 392_702,
    "validation_matched": 9_815,
    "validation_mismatched": 9_832,
    "test_matched": 9_796,
    "test_mismatched": 9_847,
  },
  "glue/mnli_matched": {"validation": 9_815, "test": 9_796},
  "glue/mnli_mismatched": {"validation": 9_832, "test": 9_847},
  "glue/ax": {"test": 1_104},
  **{f"super_glue/{name}": dict(zip(_THREE, sizes, strict=True)) for name, sizes in _SUPER_GLUE.items()},
  "super_glue/axb": {"test": 1_104},
  "super_glue/axg": {"test": 356},
  "squad/v1.1": {"train": 87_599, "validation": 10_570},
  "squad/v2.0": {"train": 130_319, "validation": 11_873},
  "definite_pronoun_resolution": {"train": 1_322, "test": 564},
  "conll2003/conll2003": {"train": 14_042, "dev": 3_251, "test": 3_454},
  "wnut_17": {"train": 3_394, "validation": 1_009, "test": 1_287},
  "cnn_dailymail": {"train": 287_113, "validation": 13_368, "test": 11_490},
  "xsum": {"train": 204_045, "validation": 11_332, "test": 11_334},
  "wmt_t2t_translate/de-en": {"train": 4_592_289, "validation": 3_000, "test": 3_003},
  "wmt14_translate/fr-en": {"train": 40_836_715, "validation": 3_000, "test": 3_003},
  "wmt16_translate/ro-en": {"train": 610_320, "validation": 1_999, "test": 1_999},
  "imdb_reviews/plain_text": {"train": 25_000, "test": 25_000, "unsupervised": 50_000},
  "trec": {"train": 5_452, "test": 500},
  "swag": {"train": 73_546, "validation": 20_006, "test": 20_005},
  "sick": {"train": 4_439, "validation": 495, "test": 4_906},
  "sts/12": {"test": 3_108},
  "sts/13": {"test": 1_500},
  "sts/14": {"test": 3_750},
  "sts/15": {"test": 3_000},
  "sts/16": {"test": 1_186},
  "all_nli/pairs": {"train": 942_069, "validation": 19_657, "test": 19_656},
  "all_nli/triplets": {"train": 557_850, "validation": 6_584, "test": 6_609},
  "c4/en": {"train": 364_868_892, "validation": 364_608},
}
