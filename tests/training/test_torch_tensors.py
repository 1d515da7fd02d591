"""Tensors of torch are taken by their values; one that wants a gradient is an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.data import Loader, from_arrays
from opstage.models import mlp
from opstage.training.parameters import first_trees
from opstage.training.predictor import Predictor
from opstage.training.trainer import scalar_trainer

torch: Any = pytest.importorskip("torch")


def _square(ops: Any, x: Any) -> Any:
    return ops.sum(x * x)


def _predict(x: Any) -> Any:
    model = mlp.make(mlp.Config(inputs=(3,), hidden=(4,), classes=2))
    params, state = first_trees(model, opstage.Options())
    return Predictor(model, scalar_trainer(model.require_loss(), params, state=state))(x)["probabilities"]


TAKES: dict[str, Callable[[Any], Any]] = {
    "run": lambda x: opstage.run(_square, x),
    "value_and_grad": lambda x: opstage.value_and_grad(_square, x)[1],
    "vjp": lambda x: opstage.vjp(_square, x)[1](1.0)[0],
    "compiled": lambda x: opstage.compile(_square, opstage.Spec("n 3")).forward(x),
    "in a program": lambda x: opstage.run(lambda ops, y: ops.sum(x * y), np.ones((2, 3), np.float32)),
    "data": lambda x: next(Loader(from_arrays(x=x), 2, shuffle=False).epoch(0))[0],
    "predict": _predict,
}


@pytest.mark.parametrize("name", TAKES)
def test_a_tensor_is_its_value_and_one_that_wants_a_gradient_an_error(name: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    take = TAKES[name]
    assert np.array_equal(take(torch.tensor(x)), take(x))
    for wanting in (torch.nn.Parameter(torch.tensor(x)), torch.tensor(x, requires_grad=True)):
        with pytest.raises(UsageError, match=r"torch's \w+ gives no NumPy array: .*detach\(\)"):
            take(wanting)
        assert np.array_equal(take(wanting.detach()), take(x))
