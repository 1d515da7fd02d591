"""The page that `make parity` generates speaks of every op, and of every interpreter that executes."""

from __future__ import annotations

import re
from pathlib import Path

from opstage.ops import derived
from opstage.ops.protocol import OPS
from tests.conformance.harness import EXECUTING

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")


def test_every_op_has_a_row() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    missing = (OPS | {f"derived.{name}" for name in derived.__all__}) - rows
    assert missing == set(), "run `make parity`"


def test_every_interpreter_and_dtype_has_a_column() -> None:
    for dtype in ("float32", "float64"):
        head = PAGE.split(f"## {dtype}\n")[1].splitlines()[1]
        assert [name for name in EXECUTING if f"| {name} " not in head] == [], "run `make parity`"
