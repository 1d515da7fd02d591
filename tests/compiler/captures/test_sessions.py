"""A session is no recorded program: its ops are called anew each time. What it is given is its own from then on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Options, Param, Session

BACKENDS = ("eager", "compiled")


def _sums(backend: str, scale: list[float], array: Any) -> list[float]:
    """Three passes over ops that read a list and arrays, which change between the passes and before the values."""
    session = Session(Options(backend=backend))
    weight = Param(np.ones(3, np.float32))
    found = []
    for step in range(3):
        session.reset_tape()
        x, w = session.input(array), session.use(weight)
        held = session.const(array)
        y = session.sum(session.scale(session.mul(w, x), c=scale[0]) + held)
        array += 1.0  # before the value is asked for
        scale[0] += 1.0
        found.append(float(session.get_value(y)))
        session.backward(y)
        session.sgd_step_all(0.1 * (step + 1))
        found.append(float(weight.value.sum()))
    return found


def test_recorded_sessions_answer_as_eager_ones() -> None:
    eager, compiled = (_sums(backend, [1.0], np.arange(3, dtype=np.float32)) for backend in BACKENDS)
    assert compiled == pytest.approx(eager, rel=1e-6)
