"""Every op's docstring states the errors that wrong calls of it raise, no more and no fewer."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.conformance.causes import SHARED
from tests.conformance.raises import DERIVED, NAMED, documented, found, section, stated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api" / "errors.md"


@pytest.mark.parametrize("op", [*NAMED, *DERIVED])
def test_docstring_states_what_the_op_refuses(op: str) -> None:
    causes = found(op)
    assert stated(inspect.getdoc(documented(op)) or "") == causes, (
        f"`python -m tests.conformance.raises --write` puts this at the end of its docstring:\n{section(causes)}"
    )


def test_page_of_errors_explains_what_many_ops_state() -> None:
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(cause.words.format("x"), cause.error.__name__) for cause in SHARED]
