"""Choices and loops by values on a device: the host reads what is chosen by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim, scalar_trainer
from opstage.ops.errors import RangeError
from opstage.training.memory import step_memory
from tests.conformance.harness import assert_close
from tests.control.control_programs import CASES, Case, Structural
from tests.control.test_control import scalar

each_backend = pytest.mark.parametrize("backend", ["eager", "compiled"])
SMALL = [case for case in CASES if case.name not in ("newton", "through 1", "through 3")]


@each_backend
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_values_and_gradients_are_those_of_the_cpu(case: Case, backend: Any) -> None:
    program = scalar(case, Structural())
    found = opstage.value_and_grad(program, *case.args, options=Options(device="cuda", backend=backend))
    assert_close(found, opstage.value_and_grad(program, *case.args), (2e-5, 2e-5), case.name)


@each_backend
def test_bounds_are_kept(backend: Any) -> None:
    options = Options(device="cuda", backend=backend)

    def loop(ops: Any, x: Any) -> Any:
        return ops.while_loop(lambda ops, c: c < 5.0, lambda ops, c: c + 1.0, x, max_iterations=3)

    assert opstage.run(loop, 2.5, options=options) == 5.5
    with pytest.raises(RangeError, match="cond still holds after max_iterations=3 iterations"):
        opstage.run(loop, 0.0, options=options)
    with pytest.raises(RangeError, match="index must be from 0 to 1 but is 2"):
        opstage.run(lambda ops, i: ops.switch(i, [lambda ops: ops.const(1.0)] * 2), np.array(2), options=options)


def loss(ops: Any, w: Any, x: Any) -> Any:
    y = ops.cond(ops.sum(x) > 0.0, lambda ops: ops.linear(w, None, x), lambda ops: x)
    return ops.sum(y * y)


@each_backend
def test_a_step_is_that_of_the_cpu_and_its_memory_is_predicted(backend: Any) -> None:
    w, x = np.eye(4, dtype=np.float32), np.ones((3, 4), np.float32)
    losses = []
    optimizer = optim.adamw(lr=0.1)
    for options in (Options(), Options(device="cuda", backend=backend)):
        trainer = scalar_trainer(loss, w, Spec("B 4"), options=options)
        state = trainer.init_optim(optimizer)
        losses.append([float(trainer.advance(optimizer, state, s * x).loss) for s in (1.0, 1.0, -1.0, 1.0)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    memory = step_memory(
        loss, Spec("4 4"), Spec("B 4"), optimizer=optimizer, options=Options(device="cuda", backend=backend)
    )
    assert memory.at(B=3).peak < memory.at(B=300).peak
