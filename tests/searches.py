"""How far searches go: through random programs, seeds of recipes, damaged files, moments at which a run is cut off.

A search draws the same cases in every run, so that what it finds comes back. `make test-slow` goes through a quarter of
them, the first, and `make soak` through all: after a change of the checker, the passes or the code generator, of what
commits or writes, or of a recipe. The tests that ask here are marked `soak`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

C = TypeVar("C")

FULL = os.environ.get("OPSTAGE_SEARCH") == "full"
MARKS = (pytest.mark.slow, pytest.mark.soak)
"""The marks of those parameters of a test that a search is made of."""


def some(cases: Sequence[C]) -> Sequence[C]:
    """Every fourth of these cases, or all: of a table whose rows and columns are each met by others."""
    return cases if FULL else cases[::4]


def share(cases: int) -> int:
    """The number of these cases that this run goes through; at least one."""
    return cases if FULL else max(1, cases // 4)
