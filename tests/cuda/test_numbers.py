"""Large, offset and cancelling numbers on simulated CUDA."""

from __future__ import annotations

import pytest

from opstage.interpreters.registry import make_interpreter
from opstage.options import Options
from tests.numbers.accuracy import LEVELS, WINNERS
from tests.numbers.test_accuracy import assert_exact


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_small(backend: str) -> None:
    base = make_interpreter(Options(device="cuda", backend=backend))
    assert_exact(LEVELS[::5] + WINNERS, base)
