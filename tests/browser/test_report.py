"""The report of a run, looked at in a headless Chromium: what is rendered, where, and that nothing complains."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from opstage.pages import render
from opstage.runs import configure, train
from opstage.runs.charts import Curve, Panel, panel_svg
from opstage.runs.run_comparison import compare_runs, comparison_html


def page_html(title: str, body: str, written: float | None = None) -> str:
    return render("run_page.html", title=title, body=body, written=written, refresh=3)


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
addEventListener("load", () => {  // of frames too: before it one may have no document yet
const measured = {
  width: document.documentElement.scrollWidth, window: window.innerWidth,
  text: document.body.innerText,
  frames: all("iframe").map(e => [e.contentDocument.documentElement.scrollWidth, e.clientWidth]),
  svgs: all("svg").map(box),
  curves: all("svg").map(svg => [...svg.querySelectorAll(".curve")].map(box)),
  labels: all("svg").map(svg => [...svg.querySelectorAll("text")].map(box)),
  strokes: all("polyline").map(e => getComputedStyle(e).stroke),
  diagonal: all("td.right").map(e => getComputedStyle(e).backgroundColor),
  images: all("img").map(e => e.complete ? e.naturalWidth : 0),
  rows: all(".opstage .r.op").filter(e => e.checkVisibility()).length,
  outside: all("[src]:not([src^='data:']), link[href]:not([href^='data:'])").length,
};
const pre = document.createElement("pre");
pre.id = "measured"; pre.textContent = JSON.stringify(measured);
document.body.append(pre);
});
</script>"""


@dataclass(frozen=True)
class Page:
    """The rendered DOM, the console's lines, the screenshot's pixels, and what `MEASURE` measured."""

    dom: str
    console: list[str]
    pixels: Any
    measured: dict[str, Any]


USE = """<script>{
const all = s => [...document.querySelectorAll(s)];
const panel = document.querySelector(".panel"), plot = panel.querySelector(".plot");
const point = () => {
  const box = plot.getBoundingClientRect(), svg = plot.firstElementChild;
  const spot = svg.querySelectorAll(".curve")[1].points[1];
  const clientX = box.left + spot.x * box.width / svg.viewBox.baseVal.width;
  plot.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY: box.top + 50}));
  return [...panel.querySelectorAll(".readout div")].map(e => e.textContent);
};
const seen = {points: JSON.parse(panel.querySelector("script").textContent)};
seen.shown = point();
const [y] = panel.querySelectorAll("button");
y.click();
seen.logarithmic = point();
seen.pressed = [...panel.querySelectorAll("button")].map(e => e.getAttribute("aria-pressed"));
const spots = plot.querySelectorAll(".curve")[1].points, values = seen.points[1][1].map(p => Math.log(p[1]));
const part = (a, b, c) => (b - a) / (c - a);
seen.spacing = [part(values[0], values[1], values[2]), part(spots[0].y, spots[1].y, spots[2].y)];
plot.dispatchEvent(new PointerEvent("pointerleave"));
seen.left = [panel.querySelector(".readout").hidden, all(".hover").length];
TELL(seen);
}</script></body>"""

CONTRAST = """<script>{
const parse = text => {
  const n = text.match(/[\\d.]+/g).map(Number); return [n.slice(0, 3), n.length > 3 ? n[3] : 1];
};
const over = ([c, a], under) => c.map((v, i) => a * v + (1 - a) * under[i]);
const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = e => {
  const chain = [];
  for (let at = e; at; at = at.parentElement) chain.unshift(at);
  return chain.reduce((under, at) => over(parse(getComputedStyle(at).backgroundColor), under), [255, 255, 255]);
};
const opacity = e => {
  let o = 1;
  for (let at = e; at; at = at.parentElement) o *= getComputedStyle(at).opacity;
  return o;
};
const ratio = e => {
  const under = behind(e), style = getComputedStyle(e);
  const [c, a] = parse(e.namespaceURI.includes("svg") ? style.fill : style.color);
  const [x, y] = [light(over([c, a * opacity(e)], under)), light(under)];
  return (Math.max(x, y) + .05) / (Math.min(x, y) + .05);
};
const texts = [...document.body.querySelectorAll("*")].filter(e => e.checkVisibility() && !e.disabled
  && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && !["SCRIPT", "STYLE", "TITLE"]
  .includes(e.tagName.toUpperCase()));
TELL({dark: matchMedia("(prefers-color-scheme: dark)").matches, texts: texts.length,
  poor: texts.filter(e => ratio(e) < 4.5).map(e => [e.textContent.trim().slice(0, 40), ratio(e)]).slice(0, 9)});
}</script></body>"""


def told(html: str, script: str, folder: Path, *, flags: Sequence[str] = (), width: int = 1280) -> dict[str, Any]:
    """What a script that ends with `TELL(…)` says of a page."""
    tell = """(seen => { const e = document.createElement("pre");
      e.id = "told"; e.textContent = JSON.stringify(seen); document.body.append(e); })"""
    seen = looked_at(html.replace("</body>", script.replace("TELL", tell)), folder, flags=flags, width=width)
    assert seen.console == []
    found = re.search(r'<pre id="told">(.*?)</pre>', seen.dom, re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))  # type: ignore[no-any-return]


WIDTHS = (390, 768, 1280)
"""Those of a phone, a tablet and a laptop, in pixels."""


def within(html: str, *widths: int) -> str:
    """A page that shows another one at some widths, which may be less than that of the narrowest window of Chromium."""
    frames = [f'<iframe style="border:0;width:{w}px;height:800px" srcdoc="{escape(html)}"></iframe>' for w in widths]
    return f"<!doctype html><html><body>{''.join(frames)}</body></html>"


def assert_readable(html: str, folder: Path, *, texts: int, schemes: Sequence[int] = (0, 1)) -> None:
    """No page scrolls sideways, and texts stand out 4.5 to 1, as WCAG asks; `schemes` are Chromium's, 0 for dark."""
    tell = """(seen => parent.document.body.append(Object.assign(parent.document.createElement("pre"),
      {className: "told", textContent: JSON.stringify(seen)})))"""
    frames = within(html.replace("</body>", CONTRAST.replace("TELL", tell)), *WIDTHS)
    for scheme in schemes:
        flags = [f"--blink-settings=preferredColorScheme={scheme}"]
        seen = looked_at(frames, folder, width=1400, height=900, flags=flags)
        assert seen.console == [] and seen.measured["frames"] == [[width, width] for width in WIDTHS]
        found = [
            json.loads(unescape(each)) for each in re.findall(r'<pre class="told">(.*?)</pre>', seen.dom, re.DOTALL)
        ]
        assert [used["dark"] for used in found] == [scheme == 0] * len(WIDTHS)
        assert all(used["texts"] > texts and used["poor"] == [] for used in found), found


def looked_at(html: str, folder: Path, *, width: int = 1280, height: int = 2400, flags: Sequence[str] = ()) -> Page:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "this test needs Chromium: apt-get install chromium"
    page, shot = folder / "page.html", folder / "shot.png"
    before, end, after = html.rpartition("</body>")
    page.write_text(f"{before}{MEASURE}{end}{after}")
    command = [chromium, *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
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
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a small classifier."""
    out = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "run": {"model": "cnn", "epochs": 3, "log_every": 2, "plot": False, "out": str(out)},
        "model": {"channels": (4,), "dense": 16},
    }
    train(configure(values=values, environ={}))
    return out


@pytest.fixture(scope="module")
def report(run: Path) -> str:
    """Its report."""
    return (run / "report.html").read_text()


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
    assert "src=" not in report.replace('src="data:', "") and "@import" not in report and "fetch(" not in report


def test_a_reader_sees_what_the_run_was(page: Page) -> None:
    text = page.measured["text"]
    assert re.search(r"^cnn, [\d,]+ parameters$", text, re.MULTILINE)
    assert "Finished: 3 of 3 epochs, 66 of 66 steps." in text
    assert re.search(r"^On held-out data: accuracy \d\d\.\d\d %, loss \d\.\d+\.$", text, re.MULTILINE)
    assert re.search(r"^started\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", text, re.MULTILINE)
    assert re.search(r"^run$", text, re.MULTILINE)
    assert re.search(r"^duration\s+[\d.]+ s$", text, re.MULTILINE)
    for label in ("directory", "command", "git commit"):
        assert re.search(rf"^{label}\s+\S+", text, re.MULTILINE), label
    assert "accuracy in %" in text
    for heading in ("Curves", "Rates", "Confusion matrix", "Worst mistakes", "Shapes and cost", "Configuration", "Run"):
        assert re.search(f"^{heading}$", text, re.MULTILINE)
    assert "params.blocks.0.first.kernel (4, 1, 3, 3)" in text
    assert re.search(r"^conv\s.*\(B, 4, 8, 8\)", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"model\.channels\s+4\s+a value given in Python", text)
    assert re.search(r"optimizer\.lr\s+0\.002\s+recipe of cnn", text)
    assert page.measured["rows"] >= 10


def test_curves_lie_within_their_panels_and_labels_do_not_collide(page: Page) -> None:
    assert len(page.measured["svgs"]) == 4
    assert [len(curves) for curves in page.measured["curves"]] == [3, 1, 1, 1]
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


def test_report_at_three_widths_in_both_schemes_is_readable(report: str, tmp_path: Path) -> None:
    assert_readable(report, tmp_path, texts=200)


def test_a_panel_is_read_and_has_logarithmic_axes(report: str, tmp_path: Path) -> None:
    """The values under the cursor are those of the metrics file, whatever the scale."""
    used = told(report, USE, tmp_path)
    shown, point = used["shown"], used["points"][1][1][1]
    assert len(shown) == 3
    assert shown[1] == f"{point[1]:.6g} at step {point[0]}, training, mean of epoch"
    assert used["logarithmic"] == shown and used["pressed"] == ["true", "false"]
    assert used["spacing"][0] == pytest.approx(used["spacing"][1], rel=1e-2)
    assert used["left"] == [True, 0]


def test_comparison_at_three_widths_in_both_schemes_is_readable(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    html = comparison_html(compare_runs([run, tmp_path / "other"]))
    assert_readable(html, tmp_path, texts=0)


def test_a_curve_that_is_not_positive_has_no_logarithm(tmp_path: Path) -> None:
    panel = Panel("loss", (Curve("a", ((1, -1.0), (2, -2.0))), Curve("b</script>", ((1, -1.0),))))
    seen = looked_at(page_html("x", panel_svg(panel)), tmp_path)
    assert seen.console == []
    assert seen.dom.count("data-log=") == 1
    assert re.search(r"<button[^>]*disabled[^>]*>log y</button><button[^>]*aria-pressed=.false.[^>]*>log x<", seen.dom)


@pytest.mark.parametrize(("age", "told"), [(0, r"Written \d+ s ago\."), (600, "Written 10 min ago: the run may have")])
def test_the_page_of_a_run_that_goes_on_says_how_old_it_is(tmp_path: Path, age: int, told: str) -> None:
    seen = looked_at(page_html("x", '<p id="age"></p>', written=time.time() - age), tmp_path)
    assert seen.console == []
    assert re.search(told, seen.measured["text"])


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_page_of_a_run_that_goes_on_is_loaded_again(tmp_path: Path, goes_on: bool) -> None:
    """As often as it says, and with the axes that its reader chose; a finished one never."""
    panel = Panel("loss", (Curve("a", ((1, 1.0), (2, 2.0))),))
    count = """<script>{
      const n = 1 + +(sessionStorage.getItem("loads") || 0), [y] = document.querySelectorAll(".axes button");
      sessionStorage.setItem("loads", n);
      if (n === 1) y.click();
      parent.document.title = n + " " + y.getAttribute("aria-pressed");
    }</script></body>"""
    html = page_html("x", '<p id="age"></p>' + panel_svg(panel), written=time.time() if goes_on else None)
    # within another page: to load that one itself again would give it its virtual time again
    seen = looked_at(
        within(html.replace("</body>", count), 800), tmp_path, flags=["--virtual-time-budget=10000"], height=900
    )
    assert seen.console == []
    (loads,) = re.findall(r"<title>(\d+) true</title>", seen.dom)
    assert int(loads) >= 3 if goes_on else loads == "1"


def test_samples_are_drawn(tmp_path: Path) -> None:
    """Three rows of ten images of 8 by 8, decoded from the page itself."""
    run = {"model": "vae", "epochs": 1, "plot": False, "out": str(tmp_path / "run")}
    train(configure(values={"run": run, "model": {"hidden": (8,), "latent": 2}}, environ={}))
    seen = looked_at((tmp_path / "run" / "report.html").read_text(), tmp_path)
    assert seen.console == []
    assert seen.measured["images"] == [8] * 30
    assert "through the code" in seen.measured["text"]
    assert "Confusion matrix" not in seen.measured["text"]
