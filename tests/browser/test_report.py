"""The report of a run, looked at in a headless Chromium: what is rendered, where, and that nothing complains."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from opstage.experiment import configure, train

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--log-level=0",
    "--hide-scrollbars",
]

MEASURE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom].map(Math.round); };
const all = s => [...document.querySelectorAll(s)];
const measured = {
  width: document.documentElement.scrollWidth, window: window.innerWidth,
  text: document.body.innerText,
  svgs: all("svg").map(box),
  curves: all("svg").map(svg => [...svg.querySelectorAll(".curve")].map(box)),
  labels: all("svg").map(svg => [...svg.querySelectorAll("text")].map(box)),
  strokes: all("polyline").map(e => getComputedStyle(e).stroke),
  diagonal: all("td.right").map(e => getComputedStyle(e).backgroundColor),
  images: all("img").map(e => e.complete ? e.naturalWidth : 0),
  rows: all(".opstage .r.op").filter(e => e.checkVisibility()).length,
  outside: all("[src], link[href]:not([href^='data:'])").length,
};
const pre = document.createElement("pre");
pre.id = "measured"; pre.textContent = JSON.stringify(measured);
document.body.append(pre);
</script>"""


@dataclass(frozen=True)
class Page:
    """The rendered DOM, the console's lines, the screenshot's pixels, and what `MEASURE` measured."""

    dom: str
    console: list[str]
    pixels: Any
    measured: dict[str, Any]


def looked_at(html: str, folder: Path, *, width: int = 1280, height: int = 2400) -> Page:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "this test needs Chromium: apt-get install chromium"
    page, shot = folder / "page.html", folder / "shot.png"
    page.write_text(html.replace("</body>", f"{MEASURE}</body>"))
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    seen = subprocess.run(
        [*command, f"--screenshot={shot}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in seen.stderr.splitlines() if ":CONSOLE" in line]
    found = re.search(r'<pre id="measured">(.*?)</pre>', seen.stdout, re.DOTALL)
    return Page(seen.stdout, console, imread(shot), json.loads(unescape(found[1])) if found else {})


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a short run of a small classifier."""
    out = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "run": {"model": "cnn", "epochs": 3, "log_every": 2, "plot": False, "out": str(out)},
        "model": {"channels": (4,), "dense": 16},
    }
    train(configure(values=values, environ={}))
    return (out / "report.html").read_text()


@pytest.fixture(scope="module")
def page(report: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return looked_at(report, tmp_path_factory.mktemp("wide"))


def test_the_console_is_heard(tmp_path: Path) -> None:
    """Else its silence below would say nothing."""
    seen = looked_at("<body><script>console.error('heard')</script></body>", tmp_path)
    assert len(seen.console) == 1
    assert "heard" in seen.console[0]


def test_nothing_complains_and_nothing_comes_from_elsewhere(page: Page, report: str) -> None:
    assert page.console == []
    assert page.measured["outside"] == 0
    assert "http" not in report
    assert "<script" not in report


def test_a_reader_sees_what_the_run_was(page: Page) -> None:
    text = page.measured["text"]
    assert re.search(r"^cnn, [\d,]+ parameters$", text, re.MULTILINE)
    assert "Finished: 3 of 3 epochs, 66 of 66 steps." in text
    assert re.search(r"^On held-out data: accuracy \d\d\.\d\d %, loss \d\.\d+\.$", text, re.MULTILINE)
    for heading in ("Curves", "Confusion matrix", "Shapes and cost", "Configuration", "Run"):
        assert re.search(f"^{heading}$", text, re.MULTILINE)
    assert "params.blocks.0.first.kernel (4, 1, 3, 3)" in text
    assert re.search(r"^conv\s.*\(B, 4, 8, 8\)", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"model\.channels\s+4\s+a value given in Python", text)
    assert re.search(r"optimizer\.lr\s+0\.002\s+recipe of cnn", text)
    assert page.measured["rows"] >= 10


def test_curves_lie_within_their_panels_and_labels_do_not_collide(page: Page) -> None:
    assert len(page.measured["svgs"]) == 2
    assert [len(curves) for curves in page.measured["curves"]] == [3, 1]
    for svg, curves, labels in zip(page.measured["svgs"], page.measured["curves"], page.measured["labels"]):
        for left, top, right, bottom in [*curves, *labels]:
            assert svg[0] - 1 <= left <= right <= svg[2] + 1
            assert svg[1] - 1 <= top <= bottom <= svg[3] + 1
        for left, _, right, _ in curves:
            assert right - left > (svg[2] - svg[0]) / 3
        for i, one in enumerate(labels):
            for other in labels[:i]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 2 or other[3] <= one[1] + 2
                assert apart, (one, other)
    assert len(set(page.measured["strokes"])) == 3


def test_the_diagonal_of_the_confusion_matrix_is_coloured(page: Page) -> None:
    assert 5 <= len(page.measured["diagonal"]) <= 10
    assert len(set(page.measured["diagonal"])) > 1  # the shade is the share
    assert all(
        colour.startswith("rgba(42, 157, 92") or colour == "rgb(42, 157, 92)" for colour in page.measured["diagonal"]
    )


def test_the_screenshot_shows_it(page: Page) -> None:
    """Ink on the page, and every colour of the curves among it."""
    pixels = (page.pixels[..., :3] * 255).round().astype(int)
    assert pixels.shape[:2] == (2400, 1280)
    background = pixels[0, 0]
    assert 0.005 < (pixels != background).any(axis=-1).mean() < 0.5
    left, top, right, bottom = page.measured["svgs"][0]
    panel = pixels[top:bottom, left:right]
    for colour in ((209, 73, 91), (42, 157, 92)):
        assert (abs(panel - colour).sum(axis=-1) < 12).sum() > 50


def test_a_phone_does_not_scroll_sideways(report: str, tmp_path: Path) -> None:
    seen = looked_at(report, tmp_path, width=500, height=900)
    assert seen.console == []
    assert seen.measured["width"] <= seen.measured["window"]


def test_samples_are_drawn(tmp_path: Path) -> None:
    """Three rows of ten images of 8 by 8, decoded from the page itself."""
    run = {"model": "vae", "epochs": 1, "plot": False, "out": str(tmp_path / "run")}
    train(configure(values={"run": run, "model": {"hidden": (8,), "latent": 2}}, environ={}))
    seen = looked_at((tmp_path / "run" / "report.html").read_text(), tmp_path)
    assert seen.console == []
    assert seen.measured["images"] == [8] * 30
    assert "through the code" in seen.measured["text"]
    assert "Confusion matrix" not in seen.measured["text"]
