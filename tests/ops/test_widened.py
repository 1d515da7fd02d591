"""An error of dtypes says so where an array came in a dtype that a program does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.data import from_arrays

PIXELS, Y = np.ones((4, 3), np.uint8), np.ones((4, 2))


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], None, x), y)


def trainer() -> Any:
    return opstage.scalar_trainer(loss, {"w": np.ones((2, 3))})


CALLS: dict[str, Callable[[], Any]] = {
    "an argument": lambda: opstage.run(lambda ops, x: ops.exp(x), PIXELS),
    "a leaf": lambda: opstage.run(lambda ops, tree: ops.exp(tree["x"][0]), {"x": [PIXELS]}),
    "parameters": lambda: opstage.run(loss, {"w": PIXELS[:2]}, np.ones((4, 3)), Y),
    "gradient": lambda: opstage.value_and_grad(loss, {"w": np.ones((2, 3))}, PIXELS, Y),
    "step": lambda: trainer().step(0.1, PIXELS, Y),
    "step by name": lambda: trainer().step(0.1, {"y": Y, "x": PIXELS}),
    "step of a dataset": lambda: trainer().step(0.1, from_arrays(x=PIXELS, y=Y)),
    "fit": lambda: opstage.fit(trainer(), {"x": PIXELS, "y": Y}, epochs=1, batch_size=2, progress=False),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_dtype_that_was_given_is_named(call: Callable[[], Any]) -> None:
    with pytest.raises(opstage.OpstageError, match="int64") as caught:
        call()
    (note,) = caught.value.__notes__
    assert "of uint8 was given, and is int64 in a program" in note and "3) of" in note


def test_other_errors_and_other_dtypes_have_no_note() -> None:
    calls: tuple[tuple[Any, Callable[[Any, Any], Any]], ...] = (
        (np.ones((4, 3), np.int64), lambda ops, x: ops.exp(x)),
        (PIXELS, lambda ops, x: ops.reshape(x, shape=(5, 5))),
    )
    for x, program in calls:
        with pytest.raises(opstage.OpstageError) as caught:
            opstage.run(program, x)
        assert not hasattr(caught.value, "__notes__")
