"""docs/shape-errors.md says what Opstage says today."""

from __future__ import annotations

from tests.check.shape_errors import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.check.shape_errors`"
