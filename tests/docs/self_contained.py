"""`python -m tests.docs.self_contained FOLDER`: a built site loads nothing from elsewhere and works from a disk.

Each link names a file of the site, since only servers take a folder for a page."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from typing_extensions import override

_LOADED_BY = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
_NAMES_ONLY = {"canonical", "next", "prev"}


class _Loads(HTMLParser):
    """Collects the addresses outside the site that a page would load, and the paths that its links name."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.links: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "link" and dict(attrs).get("rel") in _NAMES_ONLY:
            return
        href = urlsplit(dict(attrs).get("href") or "")
        if tag == "a" and not href.scheme and href.path:
            self.links.append(unquote(href.path))
        for name, value in attrs:
            if (tag, name) in _LOADED_BY and value is not None and value.startswith(("http:", "https:", "//")):
                self.outside.append(value)


def faults(page: Path) -> list[str]:
    """What a page loads from outside the site, and its links to what is no file."""
    parser = _Loads()
    parser.feed(page.read_text(encoding="utf-8"))
    dead = [link for link in parser.links if page.name != "404.html" and not (page.parent / link).is_file()]
    return [*[f"loads {address}" for address in parser.outside], *[f"links to {link}, not a file" for link in dead]]


def main(folder: str) -> int:
    pages = sorted(Path(folder).rglob("*.html"))
    found = {page: faults(page) for page in pages}
    for page, all_faults in found.items():
        for fault in all_faults:
            print(f"{page} {fault}", file=sys.stderr)
    if not pages:
        print(f"{folder} holds no page", file=sys.stderr)
    return int(not pages or any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
