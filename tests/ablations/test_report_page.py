"""The HTML page, in a real browser and as text."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from browser import Browser, find_chromium
from report_sweeps import synthetic_result, write_sweep

from t5like.ablations.report import CSV, MARKDOWN, PAGE, README_TABLE, write_report
from t5like.ablations.report.comparison import compare
from t5like.ablations.report.costs import EnergyAssumptions
from t5like.ablations.report.data import read_sweep
from t5like.ablations.report.plots import difference_plot, loss_plot, nice_ticks, pretty
from t5like.ablations.sweep.results import write_result
from t5like.ablations.tables import BASELINE_RECIPE, TABLES

ED = "encoder_decoder/"
TABLES_RUN = (2, 4, 7, 11)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
  folder = write_sweep(
    tmp_path_factory.mktemp("sweep"),
    tables=TABLES_RUN,
    without=[("shared/prefix_lm", 0), ("shared/prefix_lm", 1), (ED + "span_corruption_5", 1)],
    failed=[("six_layers/prefix_lm", 1)],
  )
  write_result(folder, synthetic_result("own/<script>alert(1)</script>", 0))
  return folder


@pytest.fixture(scope="module")
def report(sweep, tmp_path_factory):
  folder = tmp_path_factory.mktemp("report")
  write_report(read_sweep(sweep), folder, EnergyAssumptions(watts=700))
  return folder


@pytest.fixture(scope="module")
def browser():
  if find_chromium() is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium")
  with Browser() as opened:
    yield opened


def luminance(color: tuple[float, ...]) -> float:
  """WCAG 2.2, relative luminance."""
  parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
  low, high = sorted((luminance(one), luminance(other)))
  return (high + 0.05) / (low + 0.05)


def from_hex(color: str) -> tuple[int, ...]:
  return tuple(bytes.fromhex(color[1:]))


def from_css(color: str) -> tuple[float, ...]:
  return tuple(map(float, re.findall(r"[\d.]+", color)[:3]))


@pytest.mark.parametrize("index", [0, 1], ids=["light", "dark"])
def test_text_and_marks_have_enough_contrast(report, index):
  style = re.findall(r":root\s*{(.*?)}", (report / PAGE).read_text(), re.DOTALL)[index]
  colors = dict(re.findall(r"--(\w+):(#\w{6});", style))
  assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
  for ground in ("ground", "panel", "band"):
    for letters in ("text", "faint", "link", "ours", "paper", "good", "bad"):
      assert contrast(from_hex(colors[letters]), from_hex(colors[ground])) >= 4.5, (letters, ground)
  for mark in ("c0", "c1", "c2", "c3", "c4"):
    assert contrast(from_hex(colors[mark]), from_hex(colors["ground"])) >= 3, mark


@pytest.mark.parametrize("width, dark", [(390, True), (1280, False)], ids=["phone, dark", "desktop, light"])
def test_the_page_renders_in_a_browser(report, browser, width, dark):
  browser.requests.clear()
  browser.errors.clear()
  browser.show(report / PAGE, width, dark=dark)

  # The page does not scroll sideways; its tables do, in boxes reachable by keyboard.
  assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
  overflowing = browser.evaluate(
    "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg')"
    " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
  )
  assert overflowing == []
  boxes = browser.evaluate(
    "[...document.querySelectorAll('.scroll')].map(e => [e.tabIndex, e.scrollWidth, e.clientWidth])"
  )
  assert len(boxes) >= len(TABLES_RUN) + 3 and all(tab == 0 for tab, _, _ in boxes)
  assert (width == 1280) or any(inner > outer for _, inner, outer in boxes)

  # Every row of every table is visible, with a row header.
  for number in TABLES_RUN:
    names = browser.evaluate(
      f"[...document.querySelectorAll('#table-{number} tr[data-recipe] th[scope=row]')]"
      ".filter(e => e.getBoundingClientRect().height > 0).map(e => e.innerText)"
    )
    assert [name.removesuffix(" (baseline)") for name in names][: len(TABLES[number].rows)] == [
      pretty(row.name) for row in TABLES[number].rows
    ]
  plots = browser.evaluate(
    "[...document.querySelectorAll('svg.plot')].map(e => [e.getBoundingClientRect().width,"
    " e.querySelector('title').textContent, e.querySelector('desc').textContent.length])"
  )
  assert len(plots) >= 3 * len(TABLES_RUN) and all(
    300 < size <= 480 and title and about for size, title, about in plots
  )
  letters = browser.evaluate(
    "Math.min(...[...document.querySelectorAll('svg.plot')].map(e => 12 * e.getBoundingClientRect().width / 400))"
  )
  assert letters > 10  # pixels

  # Light or dark as requested; nothing is fetched, no errors are logged.
  ground, text = (
    from_css(browser.evaluate(f"getComputedStyle(document.body).{name}")) for name in ("backgroundColor", "color")
  )
  assert (luminance(ground) < 0.05) == dark and contrast(ground, text) > 10
  assert browser.requests == [(report / PAGE).as_uri()] and browser.errors == []
  assert browser.evaluate("document.scripts.length + document.querySelectorAll('b script').length") == 0


def test_the_files_are_complete_and_escaped(report):
  page = (report / PAGE).read_text()
  assert "own/<wbr>&lt;script&gt;alert(1)&lt;/<wbr>script&gt;" in page and "<script" not in page
  assert "out of memory &lt;b&gt;&amp; more&lt;/b&gt;" in page
  assert re.findall(r"(?:src|href)=\"(?!#|data:)", page) == [] and "@import" not in page and "url(http" not in page
  assert 'scope="row"' in page and 'scope="col"' in page and 'scope="colgroup"' in page and 'lang="en"' in page
  assert "not run" in page and "1 of 2" in page
  assert (report / MARKDOWN).read_text().count("\n## ") == 2 + len(
    TABLES_RUN
  ) + 1 + 2  # claims, order, own, objectives, cost
  assert (report / CSV).read_text().startswith("table,row,recipe,group,")


def test_the_same_results_give_the_same_bytes(sweep, report, tmp_path):
  again = write_report(read_sweep(sweep), tmp_path, EnergyAssumptions(watts=700))
  assert all(path.read_bytes() == (report / path.name).read_bytes() for path in again)


def test_plots_put_marks_where_the_numbers_are(sweep):
  table = compare(read_sweep(sweep)).tables[0]
  root = ElementTree.fromstring(difference_plot(table, "glue"))
  rows = [row for row in table.rows if not row.is_baseline]
  ours = [float(mark.get("cx")) for mark in root.iter("circle")]
  known = [row.cells["glue"].in_spreads for row in rows if row.results]
  assert len(ours) == len(known) and sorted(ours) == [x for _, x in sorted(zip(known, ours, strict=True))]
  assert len([mark for mark in root.iter("path") if mark.get("class") == "paper"]) == len(rows)
  assert len([mark for mark in root.iter("line") if mark.get("class") == "seed"]) == sum(len(r.results) for r in rows)
  [band] = root.iter("rect")
  left, right = float(band.get("x")), float(band.get("x")) + float(band.get("width"))
  for distance, x in zip(known, ours, strict=True):
    assert (left <= x <= right) == (abs(distance) <= 2)
  curves = ElementTree.fromstring(loss_plot(table))
  lines = [line for line in curves.iter("path") if "line" in line.get("class", "")]
  assert len([line for line in lines if line.get("data-mean")]) == len([row for row in table.rows if row.results])
  assert len({(line.get("class"), line.get("stroke-dasharray")) for line in lines}) == 9  # a style for each row run


def test_ticks_are_round():
  assert nice_ticks(0, 2000, 4) == [0, 500, 1000, 1500, 2000]
  assert nice_ticks(2.9, 7.1, 5) == [3, 4, 5, 6, 7]
  assert nice_ticks(0.93, 1.07, 5) == [0.95, 1.0, 1.05]
  assert nice_ticks(5, 5, 4) == [5]


def test_the_command(sweep, tmp_path, t5like):
  exported = tmp_path / "small.json"
  done = t5like("ablate", "--report", f"--sweep_dir={sweep}", f"--output={tmp_path / 'one'}", f"--export={exported}")
  assert (
    "Tables 2, 4, 7 and 11 of the T5 paper at mini scale" in done.stdout and "Not run: shared/prefix_lm" in done.stdout
  )
  t5like("ablate", "--report", f"--from={exported}", f"--output={tmp_path / 'two'}", "--device_watts=650")
  for name in (CSV, README_TABLE):
    assert (tmp_path / "one" / name).read_text() == (tmp_path / "two" / name).read_text()
  assert "650 W" in (tmp_path / "two" / MARKDOWN).read_text()
  for flags, message in (
    ([], "exactly one sweep"),
    ([f"--sweep_dir={sweep}", f"--from={exported}"], "exactly one sweep"),
    ([f"--from={exported}"], "--from requires --output"),
    ([f"--sweep_dir={sweep}", "--pue=0.5"], "invalid --pue: 0.5 (expected at least 1)"),
    ([f"--sweep_dir={sweep}", "--co2e=-3"], "invalid --co2e: -3 (expected at least 0)"),
    ([f"--sweep_dir={tmp_path}"], "no sweep in"),
    ([f"--sweep_dir={sweep}", f"--output={exported}"], "cannot write the report"),
    ([f"--sweep_dir={sweep}", f"--export={tmp_path}"], "cannot write the export"),
    (
      [f"--sweep_dir={sweep}", "--table=7", "--gin.X=1"],
      "only for a sweep, not for its report: --table, --gin.NAME=VALUE",
    ),
    ([f"--sweep_dir={sweep}", "--workers=3"], "only for a sweep, not for its report: --workers"),
  ):
    assert message in t5like("ablate", "--report", *flags, status=2).stderr
  for flag in (f"--from={exported}", f"--export={exported}", f"--output={tmp_path}", "--device_watts=3"):
    assert (
      f"only for --report: {flag.partition('=')[0]}" in t5like("ablate", f"--sweep_dir={sweep}", flag, status=2).stderr
    )


def test_a_sweep_of_the_baseline_alone_has_a_report(tmp_path):
  write_sweep(tmp_path, tables=(6,), seeds=1, without=[(r, 0) for r in TABLES[6].recipes if r != BASELINE_RECIPE])
  written = write_report(read_sweep(tmp_path), tmp_path / "report")
  assert "Not run:" in written[0].read_text() and "–" in written[1].read_text()
