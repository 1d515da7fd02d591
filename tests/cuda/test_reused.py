"""The tests of sessions, trainers and modules once more, on a simulated device: the same bodies in float32."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

from opstage import Options, Session
from tests.training import (
    test_module,
    test_session,
    test_session_refusals,
    test_session_state,
    test_session_steps,
    test_trainer,
)
from tests.training.conftest import NewSession

CUDA = Options(device="cuda")
LEFT_OUT = {
    "test_exact_sessions_compute_with_fractions": "a device has no fractions",
    "test_loss_gradients_and_sgd_step": "compares numbers to 12 digits",
    "test_running_statistics_of_batch_norm": "compares numbers to 12 digits",
    "test_jvp_of_tensors_of_parameters_and_without_a_path": "compares float64 numbers bit for bit",
    "test_natural_numbers_are_indices_that_may_be_set": "compares float64 numbers bit for bit",
    "test_step_with_is_functional_in_the_optimizer_state": "looks at moments as arrays of the host",
    "test_chains_deeper_than_python_s_stack": "thousands of ops, each slow in the simulator",
    "test_a_session_trains": "hundreds of steps, each slow in the simulator",
}
"""And why."""


@pytest.fixture
def new_session() -> NewSession:
    """In float32, whatever dtype a test asks for."""
    return lambda **options: Session(CUDA.replace(**{**options, "dtype": "float32"}))


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device where a test says float64, and with tolerances of float32."""
    for module in (test_trainer, test_module):
        monkeypatch.setattr(module, "FLOAT64", CUDA)
    values = test_trainer.values
    monkeypatch.setattr(
        test_trainer, "values", lambda *seed: {n: v.astype(np.float32) for n, v in values(*seed).items()}
    )
    close = np.testing.assert_allclose

    def close_in_float32(actual: Any, desired: Any, rtol: float = 1e-5, atol: float = 1e-6, **rest: Any) -> None:
        close(actual, desired, max(rtol, 1e-5), max(atol, 1e-6), **rest)

    monkeypatch.setattr(np.testing, "assert_allclose", close_in_float32)


def _reused() -> dict[str, Callable[..., None]]:
    sessions = (test_session, test_session_refusals, test_session_state, test_session_steps)
    found = {}
    for module in (*sessions, test_trainer, test_module):
        for name, test in vars(module).items():
            mine = name.startswith("test_") and (module not in sessions or "new_session" in signature(test).parameters)
            if mine and name not in LEFT_OUT:
                found[f"{module.__name__.rpartition('.')[2]}_{name.removeprefix('test_')}"] = test
    return found


globals().update(_reused())
