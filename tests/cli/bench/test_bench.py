"""The benchmark runs and prints what it promises; its speed here is not tested."""


def test_bench_data(t5like):
  out = t5like("bench", "data", "--megabytes=1", "--rows=512").stdout
  assert "span_corruption, 568 tokens of text" in out and "bert_mlm, 510 tokens of text" in out
  assert "span corruption 512/115" in out and "tokens/s" in out
  assert "rows are 100.00% full; identical bytes with 1, 2 and 4 hosts and 0, 1 and 4 threads" in out
  assert "at step 1,000,000 after" in out and "causal_lm 1024" in out


def test_invalid_options(t5like):
  for line, message in (
    (["loop", "--steps=0"], "--steps: invalid value: '0' (expected a whole number of at least 1)"),
    (["loop", "--repeats=x"], "--repeats: invalid value: 'x'"),
    (["decode", "--model=t5/tiny", "--beams=0"], "--beams: invalid value: '0'"),
    (["train", "--model=t5/tiny", "--inputs=0"], "--inputs: invalid value: '0'"),
    (["train", "--model=t5/tiny", "--peer_python=/no/python"], "--peer_python: no such program: /no/python"),
  ):
    assert message in t5like("bench", *line, status=2).stderr
