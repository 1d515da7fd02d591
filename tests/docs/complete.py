"""`python -m tests.docs.complete FOLDER`: every public name stands in a built site, with its example.

What docstrings state under `Raises:` leads to the page of errors.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.docs.session import EXAMPLES, read


def shown(folder: Path) -> dict[str, str]:
    """What the pages of the API show below the heading of each name, as HTML."""
    found = {}
    for page in sorted(folder.glob("api/*.html")):
        parts = re.split(r'<h[1-6] id="(opstage\.[\w.]+)"', page.read_text(encoding="utf-8"))
        found.update(zip(parts[1::2], parts[2::2]))
    return found


def main(folder: str) -> int:
    """0 where all are there."""
    pages = shown(Path(folder))
    names = [name for file in sorted(EXAMPLES.glob("*.txt")) for name, _ in read(file)]
    pages.setdefault(
        "opstage.models.model", pages.get("opstage.models.model.model", "")
    )  # beside a submodule of its name
    lacking = [name for name in names if "language-pycon" not in pages.get(name, "")]
    for name in lacking:
        print(f"{name} has no example on the API's pages")
    unlinked = [
        name for name, text in pages.items() if "Raises:" in re.sub("<[^>]+>", "", text) and "#causes" not in text
    ]
    for name in unlinked:
        print(f"{name} states errors that lead nowhere")
    print(f"{len(names) - len(lacking)} of {len(names)} public names have an example in {folder}")
    return int(bool(lacking or unlinked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
