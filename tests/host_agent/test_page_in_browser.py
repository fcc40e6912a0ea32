# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser, on a phone, a tablet and a small screen: all is there and nothing is cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser

WIDTHS = [390, 768, 1280]
CUT_OFF = """
[...document.querySelectorAll('body *')]
  .filter(e => e.childElementCount === 0 && e.textContent.trim() && e.scrollWidth > e.clientWidth + 1)
  .filter(e => getComputedStyle(e).overflowX !== 'visible' && e.getClientRects().length)
  .map(e => e.className + ': ' + e.textContent)
"""
PILLS = """
[...document.querySelectorAll('.sy-top .sy-chip')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 20 && box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= 120;
}).map(e => e.textContent)
"""
COVERED = """
[...document.querySelectorAll('.sy-main > *')].some(
  e => e.getBoundingClientRect().top + scrollY < document.querySelector('.sy-top').getBoundingClientRect().bottom)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A page that shows a running job."""
    command = [sys.executable, str(Path(__file__).with_name("page_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.communicate(timeout=20)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser's only tab."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def shown(page: Page, address: str, width: int, scheme: str = "light") -> None:
    """The page with all its figures and charts."""
    page.show(address, width=width, scheme=scheme)
    page.until("document.querySelectorAll('.sy-chart canvas').length === 5")
    page.until("document.body.innerText.includes('lowest: step')")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(page: Page, address: str, width: int) -> None:
    """No ellipsis, no text wider than its place, no sideways scrolling, nothing under the top bar."""
    shown(page, address, width)
    assert page.value(CUT_OFF) == []
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(COVERED) is False


@pytest.mark.parametrize("width", WIDTHS)
def test_switch_health_is_in_sight(page: Page, address: str, width: int) -> None:
    """On a phone too: a testbed with a dead agent must not look whole."""
    shown(page, address, width)
    page.until("document.querySelectorAll('.sy-top .sy-chip.good').length === 4")
    assert page.value(PILLS) == ["tor0", "tor1", "tor2", "tor3"]


def test_axes_write_numbers_as_the_tiles_do(page: Page, address: str) -> None:
    """With k and M, in the browser's own ECharts."""
    shown(page, address, 1280)
    written = page.value("""(() => {
      const charts = [...document.querySelectorAll('.sy-chart')].map(e => getElement(Number(e.id.slice(1))).chart);
      return charts.slice(2, 4).map(c => [1, 50000, 2500000].map(c.getOption().yAxis[0].axisLabel.formatter));
    })()""")
    assert written == [["1", "50 k", "2.5 M"]] * 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(page: Page, address: str, scheme: str) -> None:
    """The user's preference is followed, and figures stand out from their ground (WCAG: 4.5 : 1 and more)."""
    shown(page, address, 1280, scheme)
    page.until(f"document.body.classList.contains('body--dark') === {str(scheme == 'dark').lower()}")
    contrast = """(() => {
      const light = text => text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const ground = light(getComputedStyle(document.querySelector('.sy-tile')).backgroundColor);
      return ['.k', '.v', '.s'].map(c => light(getComputedStyle(document.querySelector('.sy-tile ' + c)).color))
        .map(ink => (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05));
    })()"""
    assert min(page.value(contrast)) >= 4.5
