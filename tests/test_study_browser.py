"""The page about a study in a real browser, light and dark, narrow and wide. Skipped where there is no Chromium."""

from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from sample_studies import SPACE, confirmation_of, write_sample_study
from test_report_browser import CONTRASTS, Scheme, browser  # noqa: F401  (the last one is a fixture)

from rl_training.results.report.study_model import build_study_report, load_study
from rl_training.results.report.study_page import render_study_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed, so the report is not looked at in a browser"
)

# Pairs of labels of one picture that cover each other.
TOUCHING_LABELS = """
[...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const labels = [...chart.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  return labels.flatMap(([name, a], index) => labels.slice(index + 1)
    .filter(([, b]) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom)
    .map(([other]) => chart.querySelector("title").textContent + ": " + name + " and " + other));
})
"""
# Labels that reach beyond their picture.
CUT_LABELS = """
[...document.querySelectorAll("svg.chart text")].filter((text) => {
  const [inner, outer] = [text.getBoundingClientRect(), text.closest("svg").getBoundingClientRect()];
  return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.top < outer.top - 1;
}).map((text) => text.textContent)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty trials of which one failed, with importance and a confirmation."""
    root = tmp_path_factory.mktemp("study")
    importance = {name: 1.0 / len(SPACE) for name in SPACE}
    study_dir = write_sample_study(root, 30, failures=(4,), importance=importance, confirmation=confirmation_of(14))
    report = build_study_report(load_study(study_dir), animation="no", created_at="now", version="0.1.0")
    path = root / "report.html"
    path.write_text(render_study_page(report, root), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_fits_is_quiet_and_every_label_can_be_read(
    browser: Browser,  # noqa: F811
    page: Path,
    width: int,
    scheme: Scheme,
) -> None:
    browser.show(page, width=width, scheme=scheme)
    assert browser.complaints == []
    assert browser.requested == [page.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("[...document.querySelectorAll('h2')].length") == 11
    assert browser.evaluate(TOUCHING_LABELS) == []
    assert browser.evaluate(CUT_LABELS) == []
    least, where = browser.evaluate(CONTRASTS)
    assert least >= 4.5, where


def test_pointing_at_a_trial_shows_it_in_all_plots_and_says_what_it_is(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.show(page, width=1600, scheme="light")
    box = browser.box_of(".slices .trial.best .dots")
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
    assert browser.evaluate("document.querySelectorAll('.picked').length") == len(SPACE) + 4  # and three plots, one row
    told = browser.evaluate("document.querySelector('.linked .readout').textContent")
    assert told.startswith("trial 14 · status completed · rung 3 of 3 · env steps 9,000 · value 408.2 · num_steps 128")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.evaluate("document.querySelectorAll('.picked').length") == 0
    assert browser.complaints == []


def test_kinds_of_trials_have_different_colours(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.show(page, width=1600, scheme="dark")
    kinds = ["paused", "promoted", "best"]
    script = "getComputedStyle(document.querySelector('.slices .trial.{}')).stroke"
    assert len({browser.evaluate(script.format(kind)) for kind in kinds}) == 3
    tones = (
        "new Set([...document.querySelectorAll('.wide .parallel')].map((line) => getComputedStyle(line).stroke)).size"
    )
    assert browser.evaluate(tones) == 9  # eight tones and the best trial
