"""The guide says of every op what it is in ONNX."""

from __future__ import annotations

from tests.interop.onnx.table import PAGE, page


def test_the_table_is_as_the_models_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.interop.onnx.table`"
