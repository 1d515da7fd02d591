"""What a device holds does not grow: after each of many steps, and after what it had no room for."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu.probe import find_device
from opstage.ops.types import FLOAT32, TensorType
from opstage.options import Options

from .here import REHEARSAL

STEPS = 10_000 if not REHEARSAL else 20


def test_ten_thousand_steps_hold_as_much_as_ten() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 16)).astype(np.float32), rng.integers(0, 4, 32)

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)

    params = {"w": rng.standard_normal((4, 16)).astype(np.float32), "b": np.zeros(4, np.float32)}
    trainer = opstage.scalar_trainer(loss, params, options=Options(device="cuda"))
    optimizer = opstage.optim.adamw(lr=0.01)
    state = trainer.init_optim(optimizer)
    device: Any = find_device()
    held = []
    for step in range(STEPS):
        state = trainer.step_with(optimizer, state, x, y)
        if step in (9, STEPS - 1):
            gc.collect()
            device.synchronize()
            held.append((device.used, device.reserved))
    assert held[0] == held[1]


def test_a_tensor_that_has_no_room_is_refused_and_others_go_on() -> None:
    device: Any = find_device()
    gc.collect()
    device.empty_cache()
    before = device.reserved
    parts: list[Any] = []
    _, total = device._results(device._driver.cuMemGetInfo())
    count = min(2**28, total // 64)  # 1 GiB each, where there are many
    with pytest.raises(opstage.OutOfMemoryError, match=r"bytes were requested on the .* free of .*; tensors hold"):
        while True:
            parts.append(device.empty(TensorType((count,), FLOAT32)))
    assert parts
    parts.clear()
    gc.collect()
    assert device.empty_cache() > 0
    assert device.reserved <= before
    np.testing.assert_array_equal(device.download(device.upload(np.ones(3, np.float32))), np.ones(3))
