"""These tests run where numba simulates CUDA, which it decides when it is imported: `make cuda-sim` sees to it."""

from __future__ import annotations

import os
from typing import Any

import pytest

collect_ignore_glob = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["test_*.py"]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of the test's own, whose bytes nobody else counts in."""
    from opstage.compiler.gpu.simulator import Simulator
    from tests.cuda.traffic import stand_in

    device = Simulator()
    stand_in(monkeypatch, device)
    return device


@pytest.fixture
def traffic(device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from tests.cuda.traffic import watch

    return watch(monkeypatch)
