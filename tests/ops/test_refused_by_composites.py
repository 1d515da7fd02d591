"""What a composite's own rule refuses is refused also where its parts, which would let it pass, are differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.errors import ShapeError
from opstage.options import Options

X = np.zeros((0, 3))


def squeezed(ops: Any, x: Any) -> Any:
    """A reshape of no elements into no elements."""
    return ops.squeeze(x, axis=1)


def total(ops: Any, x: Any) -> Any:
    return ops.sum(squeezed(ops, x))


QUESTIONS: dict[str, Callable[[Options], Any]] = {
    "run": lambda options: opstage.run(squeezed, X, options=options),
    "vjp": lambda options: opstage.vjp(squeezed, X, options=options),
    "value_and_grad": lambda options: opstage.value_and_grad(total, X, options=options),
    "jvp": lambda options: opstage.jvp(squeezed, (X,), (X,), options=options),
    "hvp": lambda options: opstage.hvp(total, (X,), (X,), options=options),
}


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_squeeze_of_a_long_axis_without_elements(question: str, backend: Any) -> None:
    with pytest.raises(ShapeError, match=r"squeeze at .*axis 1 has 3; only an axis of size 1 can be dropped"):
        QUESTIONS[question](Options(backend=backend))
