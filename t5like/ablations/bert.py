"""Tables 5 and 6 of Devlin et al. 2019 ("BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", arXiv 1810.04805): pre-training tasks and model sizes.

Scores of the development sets, copied from the text of the paper: accuracy, and F1 on SQuAD 1.1. Those of Table 6 are
means of five fine-tunings. Table 5 has a fourth row, "+ BiLSTM", a randomly initialized LSTM on top of the
left-to-right model in fine-tuning (82.1, 84.1, 75.7, 91.6, 84.9): our heads have no recurrent layer.
"""

# By recipe in gin/ablations/recipes/: name, then MNLI-m, QNLI, MRPC, SST-2 and SQuAD.
BASE = "bert/bert_mlm_nsp"
NO_NSP, LEFT_TO_RIGHT = "bert/bert_mlm", "bert_left_to_right/causal_lm"
TASK_COLUMNS = ("mnli_matched", "qnli", "mrpc", "sst2", "squad_f1")
PRETRAINING_TASKS: dict[str, tuple[str, tuple[float, ...]]] = {
  BASE: ("BERT base", (84.4, 88.4, 86.7, 92.7, 88.5)),
  NO_NSP: ("No NSP", (83.9, 84.9, 86.5, 92.6, 87.9)),
  LEFT_TO_RIGHT: ("Left-to-right, no NSP", (82.1, 84.3, 77.5, 92.1, 77.8)),
}

# By recipe, from the smallest: layers, width and heads, then perplexity, MNLI-m, MRPC and SST-2.
SIZE_COLUMNS = ("perplexity", "mnli_matched", "mrpc", "sst2")
SIZES: dict[str, tuple[tuple[int, int, int], tuple[float, ...]]] = {
  f"{BASE}/layers_3": ((3, 768, 12), (5.84, 77.9, 79.8, 88.4)),
  f"{BASE}/layers_6_heads_3": ((6, 768, 3), (5.24, 80.6, 82.2, 90.7)),
  f"{BASE}/layers_6": ((6, 768, 12), (4.68, 81.9, 84.8, 91.3)),
  BASE: ((12, 768, 12), (3.99, 84.4, 86.7, 92.9)),
  f"{BASE}/width_1024": ((12, 1024, 16), (3.54, 85.7, 86.9, 93.3)),
  f"{BASE}/layers_24_width_1024": ((24, 1024, 16), (3.23, 86.6, 87.8, 93.7)),
}

# Tasks without a column in the paper: SNLI stands in for MNLI where that is missing, and RTE for MRPC, its smallest.
MORE_COLUMNS = ("snli", "rte", "cola", "stsb", "qqp")
