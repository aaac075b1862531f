"""The report in a real browser, light and dark, narrow and wide. Skipped where there is no Chromium."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from browser import CHROMIUM, Browser, open_browser
from PIL import Image
from sample_runs import write_group, write_run
from test_report_film import moving_square

from rl_training.experiment.runs import context_of, update_metadata
from rl_training.results.loading import load_groups
from rl_training.results.report.film import encode_film
from rl_training.results.report.model import Animation, build_report
from rl_training.results.report.page import render_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed, so the report is not looked at in a browser"
)

Scheme = Literal["light", "dark"]

# The contrast of two colours, as the accessibility guidelines (WCAG 2.2) define it.
CONTRASTS = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    const colour = parts(getComputedStyle(node).backgroundColor);
    return colour.length === 4 && colour[3] === 0 ? behind(node.parentElement) : colour;
  };
  return [...document.querySelectorAll("h1, h2, h3, p, td, th, caption, li, code, summary, button, .status")]
    .map((node) => {
      const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.tagName + "." + node.className];
    })
    .sort((a, b) => a[0] - b[0])[0];
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups with all that a report can hold: hints, unfinished and failed runs, long and odd names, a film."""
    root = tmp_path_factory.mktemp("report")
    tuned = write_group(root / "tuned", [300.0, 320.0, 280.0, 310.0, 305.0], algo_kwargs={"gamma": 0.9})
    write_run(tuned, 6, [200.0, 500.0, 100.0, 100.0], algo_kwargs={"gamma": 0.9})
    write_run(tuned, 7, [90.0], status="running", total_timesteps=9_000, algo_kwargs={"gamma": 0.9})
    failed = write_run(tuned, 8, [], status="failed", algo_kwargs={"gamma": 0.9})
    update_metadata(context_of(failed), error=f"EnvironmentStepError: {'a long story ' * 20}", wall_seconds=4_000.0)
    odd = write_group(root / f"{'a-name-without-end-' * 5}<img src=x onerror=alert(1)>", [100.0, 120.0, 90.0, 80.0])
    png, still = encode_film(moving_square(30, (100, 150)), fps=30.0)
    film = Animation(png, still, (150, 100), "CartPole-v1: <b>an agent</b> at work")
    report = build_report(load_groups([tuned, odd], unfinished=True), animation=film, created_at="now", version="0.1.0")
    path = root / "report.html"
    path.write_text(render_page(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_is_whole_quiet_and_as_bright_as_its_reader_likes(
    browser: Browser, page: Path, width: int, scheme: Scheme
) -> None:
    browser.show(page, width=width, scheme=scheme)
    assert browser.complaints == []
    assert browser.requested == [page.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("[...document.querySelectorAll('h2')].length") == 9
    with Image.open(io.BytesIO(browser.screenshot())) as picture:
        assert picture.width == width
        assert picture.height > 1_000
        corner = picture.convert("RGB").getpixel((2, 2))
    assert isinstance(corner, tuple)
    assert min(corner) > 240 if scheme == "light" else max(corner) < 40
    least, where = browser.evaluate(CONTRASTS)
    assert least >= 4.5, where


def test_curves_lie_inside_their_pictures_and_have_different_colours(browser: Browser, page: Path) -> None:
    browser.show(page, width=1600, scheme="light")
    boxes = browser.evaluate(
        """[...document.querySelectorAll(".chart")].map((chart) => {
          const size = chart.viewBox.baseVal;
          return [...chart.querySelectorAll(".centre, .band, .seed:not(.other)")].map((path) => {
            const box = path.getBBox();
            return box.width > 0 && box.x >= 0 && box.y >= 0 && box.x + box.width <= size.width &&
              box.y + box.height <= size.height && path.getTotalLength() > 0;
          });
        })"""
    )
    assert [len(chart) >= 10 for chart in boxes] == [True, True]
    assert all(all(chart) for chart in boxes)
    colours = browser.evaluate(
        "[...document.querySelectorAll('.chart .centre')].map((path) => getComputedStyle(path).stroke)"
    )
    assert len(set(colours)) == 2


def test_pointing_at_a_chart_tells_its_values_and_a_command_can_be_copied(browser: Browser, page: Path) -> None:
    browser.show(page, width=1600, scheme="light")
    box = browser.box_of(".chart")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert "tuned: " in browser.evaluate("document.querySelector('.readout').textContent")
    assert browser.evaluate("document.querySelector('.command button').textContent") == "Copy"
    assert browser.complaints == []


def test_the_film_plays_and_stands_still_for_whoever_wants_no_motion(browser: Browser, page: Path) -> None:
    browser.show(page, width=1600, scheme="light")
    box = browser.box_of(".film img")
    clip = {**box, "y": box["y"] + browser.evaluate("window.scrollY"), "scale": 1}
    assert (clip["width"], clip["height"]) == (150, 100)
    pictures = {browser.call("Page.captureScreenshot", clip=clip)["data"] for _ in range(10)}
    assert len(pictures) > 1
    browser.show(page, width=1600, scheme="light", motion=False)
    shown = browser.evaluate("document.querySelector('.film img').currentSrc")
    assert shown == browser.evaluate("document.querySelector('.film source').srcset")


def test_nothing_that_a_run_says_becomes_markup(browser: Browser, page: Path) -> None:
    browser.show(page, width=1600, scheme="light")
    assert browser.evaluate("document.querySelectorAll('img').length") == 1  # the film
    assert browser.evaluate("document.body.innerText.includes('<img src=x onerror=alert(1)>')")
    assert browser.evaluate("document.querySelector('.film img').alt") == "CartPole-v1: <b>an agent</b> at work"


def test_print_is_light_and_has_no_buttons(browser: Browser, page: Path) -> None:
    browser.show(page, width=1600, scheme="dark")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.command button')).display") == "none"
