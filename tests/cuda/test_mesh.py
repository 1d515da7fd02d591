"""The ranks of a mesh, all hosted by one process on one device: what they say on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from tests.cuda.small_models import normalised, normalised_params


def trained(**options: Any) -> list[np.ndarray[Any, Any]]:
    """The parameters after two steps."""
    rng = np.random.default_rng(0)
    params = normalised_params(rng, 40, 30)
    trainer = opstage.scalar_trainer(normalised, params, options=Options(**options))
    rule = optim.adam(lr=0.01)
    state = trainer.init_optim(rule)
    for _ in range(2):
        trainer.advance(rule, state, rng.standard_normal((8, 30)).astype("f"), rng.integers(0, 3, 8))
    return [np.asarray(trainer.get_params()[name]) for name in params]


@pytest.mark.parametrize("backend, zero", [("eager", 2), ("compiled", 2)])
def test_one_device_hosts_all_ranks(backend: str, zero: int) -> None:
    expected = trained(mesh="data=2")
    found = trained(mesh="data=2", device="cuda", backend=backend, zero=zero)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
