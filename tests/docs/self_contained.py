"""`python -m tests.docs.self_contained FOLDER`: a built site loads nothing from anywhere else."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

from typing_extensions import override

_LOADED_BY = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
_NAMES_ONLY = {"canonical", "next", "prev"}


class _Loads(HTMLParser):
    """Collects the addresses outside the site that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "link" and dict(attrs).get("rel") in _NAMES_ONLY:
            return
        for name, value in attrs:
            if (tag, name) in _LOADED_BY and value is not None and value.startswith(("http:", "https:", "//")):
                self.outside.append(value)


def outside(page: str) -> list[str]:
    """What the HTML of a page loads from outside the site."""
    parser = _Loads()
    parser.feed(page)
    return parser.outside


def main(folder: str) -> int:
    pages = sorted(Path(folder).rglob("*.html"))
    found = {page: outside(page.read_text(encoding="utf-8")) for page in pages}
    for page, addresses in found.items():
        for address in addresses:
            print(f"{page} loads {address}", file=sys.stderr)
    if not pages:
        print(f"{folder} holds no page", file=sys.stderr)
    return int(not pages or any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
