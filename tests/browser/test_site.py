"""The guide as a site, looked at in a headless Chromium: both schemes, a phone's width. It needs the extra `docs`."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.browser.test_report import CONTRAST, FLAGS
from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

PAGES = [f"{page}.html" for page in ("index", "guide/runs", "guide/from-pytorch", "guide/from-keras")]
PAGES += [f"{page}.html" for page in ("api/programs", "api/errors", "parity")]
# what a click or a hover shows, and the material of other pages, is not there to be read yet
HIDDEN = ".md-skip, .headerlink, .md-search, .md-header__topic, .md-top"
SEEN = """<script>addEventListener("load", () => setTimeout(() => {
  const told = seen => { const e = document.createElement("pre"); e.id = "told";
    seen.scheme = document.body.dataset.mdColorScheme;
    e.textContent = JSON.stringify(seen); document.body.append(e); };
  LOOK
}, 300))</script></body>"""
WIDTH = """<!doctype html><html><body><iframe style="border:0;width:360px;height:800px" src="PAGE"></iframe><script>
addEventListener("load", () => setTimeout(() => {
  const e = document.createElement("pre"), frame = document.querySelector("iframe");
  e.id = "told"; e.textContent = JSON.stringify([frame.contentDocument.documentElement.scrollWidth, frame.clientWidth]);
  document.body.append(e);
}, 300))</script></body></html>"""


def _contrast() -> str:
    look = CONTRAST.removeprefix("<script>").removesuffix("</script></body>").replace("TELL(", "told(")
    return SEEN.replace("LOOK", look.replace("ratio(e) < 4.5", f'ratio(e) < 4.5 && !e.closest("{HIDDEN}")'))


class _Served(http.server.SimpleHTTPRequestHandler):
    """The site; `?look` has each page say how its texts stand out, `?phone=` shows one in a frame of 360 pixels."""

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass

    @override
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        page = Path(self.directory) / path.lstrip("/")
        if query not in ("look", "phone") or not page.is_file():
            return super().do_GET()
        text = WIDTH.replace("PAGE", path)
        if query == "look":
            before, _, after = page.read_text(encoding="utf-8").rpartition("</body>")
            text = before + _contrast() + after
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """The address of the site, served on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Served, directory=str(built)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def document(address: str, folder: Path, *flags: str) -> str:
    """The document of a page as its scripts left it, without an error."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "this test needs Chromium: apt-get install chromium"
    command = [chromium, *FLAGS, "--virtual-time-budget=5000", *flags, f"--user-data-dir={folder}", "--dump-dom"]
    shown = subprocess.run([*command, address], capture_output=True, text=True, timeout=180, check=True)
    assert [line for line in shown.stderr.splitlines() if ":CONSOLE" in line] == []
    return shown.stdout


def seen(address: str, folder: Path, *flags: str) -> Any:
    """What a page tells of itself."""
    (told,) = re.findall(r'<pre id="told">(.*?)</pre>', document(address, folder, *flags), re.DOTALL)
    return json.loads(unescape(told))


def test_search_from_disk_finds_pages(built: Path, tmp_path: Path) -> None:
    page = document(f"{(built / 'guide' / 'loops.html').as_uri()}?q=checkpoint", tmp_path)
    found = re.findall(r'<a href="(file:[^"?]+)[^"]*" class="md-search-result__link', page)
    assert (built / "guide" / "runs.html").as_uri() in found


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("number", "scheme"), [(0, "slate"), (1, "default")])
def test_texts_stand_out(site: str, page: str, number: int, scheme: str, tmp_path: Path) -> None:
    """4.5 to 1, as WCAG asks, in the reader's own scheme."""
    flags = ("--window-size=1280,900", f"--blink-settings=preferredColorScheme={number}")
    found = seen(f"{site}{page}?look", tmp_path, *flags)
    assert found["scheme"] == scheme and found["texts"] > 50 and found["poor"] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_does_not_scroll_sideways(site: str, page: str, tmp_path: Path) -> None:
    assert seen(f"{site}{page}?phone", tmp_path, "--window-size=900,900") == [360, 360]
