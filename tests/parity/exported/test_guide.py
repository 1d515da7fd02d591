"""The page of the guide on PyTorch modules, done literally: the guide's own test, without torch, leaves it out."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any

from tests.docs.blocks import DOCS, blocks


def test_the_page_prints_what_it_says() -> None:
    names: dict[str, Any] = {}
    found = blocks(DOCS / "guide" / "importing-torch.md")
    assert [block.language for block in found].count("py") == 2
    for block, after in itertools.pairwise(found):
        if block.language == "py":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(block.text, names)
            assert printed.getvalue() == after.text
