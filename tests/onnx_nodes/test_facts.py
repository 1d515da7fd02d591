"""What tests/facts/test_onnx_nodes.py says of some of onnx's node tests holds for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.facts.test_onnx_nodes import CASES, require_dependence, require_ranges
from tests.onnx_nodes.cases import cases

OTHERS = [name for name in sorted(cases()) if name not in CASES and not name.endswith("_expanded")]


@pytest.mark.parametrize("require", [require_ranges, require_dependence])
@pytest.mark.parametrize("name", OTHERS)
def test_facts_of_outputs_hold(name: str, require: Callable[[Any], None]) -> None:
    require(cases()[name])
