"""What the simulator alone can show: the most memory that was held, what went up and came down, threads that wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import ScalarModuleDef, init
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.language import cuda
from opstage.compiler.gpu.probe import find_device
from opstage.compiler.gpu.scheduler import DivergenceError
from opstage.compiler.gpu.simulator import Simulator
from opstage.init import Declaration, Plan, build
from tests.cuda.test_device import buffer
from tests.cuda.test_filling import CUDA, DECLARED, loss
from tests.cuda.traffic import watch


def test_attention_stores_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Simulator()
    monkeypatch.setattr(probe, "_found", lambda number: device)
    q = np.random.default_rng(0).standard_normal((90, 2)).astype(np.float32)

    def program(ops: Any, q: Any) -> Any:
        return ops.sum(ops.scaled_dot_product_attention(q, q, q, causal=True))

    opstage.value_and_grad(program, q, options=CUDA)
    assert 6 * q.nbytes < device.peak < 90 * 90 * 4 / 2


def test_a_module_is_made_without_a_tensor_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = ScalarModuleDef(DECLARED, loss)
    expected = build(DECLARED, seed=CUDA.seed)
    traffic = watch(monkeypatch)
    flat = [scheme.initialiser for scheme in DECLARED.values()]
    for module in (
        definition.instantiate(CUDA),
        definition.instantiate_with_plan(CUDA, Plan.of(DECLARED)),
        definition.instantiate_with_init(CUDA, flat),
    ):
        traffic.clear()
        module.forward()
        assert [shape for shape, _ in traffic.uploads if shape] == [], traffic.uploads
        assert all(param.host_stale for param in module.trainer.params.values())
        params = module.params()
        assert len(traffic.downloads) == 1 + len(DECLARED)
        for name in "abd":
            assert params[name].tobytes() == expected[name].tobytes()
        np.testing.assert_array_max_ulp(params["c"], expected["c"], maxulp=4)


def test_a_value_that_is_read_before_it_is_used_is_made_on_the_host_and_uploaded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ScalarModuleDef(DECLARED, loss).instantiate(CUDA)
    traffic = watch(monkeypatch)
    module.params()
    assert traffic.downloads == []
    module.forward()
    module.forward()
    assert len([shape for shape, _ in traffic.uploads if shape]) == len(DECLARED)


def test_values_of_ones_own_are_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = watch(monkeypatch)
    given = np.arange(6.0)
    module = ScalarModuleDef({"a": Declaration((2, 3), init.flat(given))}, loss).instantiate(CUDA)
    np.testing.assert_array_equal(module.params()["a"], given.reshape(2, 3))
    module.forward()
    assert ((2, 3), "float32") in traffic.uploads


# Simulated threads ------------------------------------------------------------------------------------------------


def test_a_barrier_that_not_all_threads_reach_is_an_error() -> None:
    def kernel(out: Any) -> None:
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        out[0] = 1

    with pytest.raises(DivergenceError, match="reached by 3 of 4 threads"):
        find_device().launch(kernel, 1, 4, buffer(1))


def test_shuffles_reach_the_lanes_that_they_name() -> None:
    def kernel(down: Any, up: Any, across: Any) -> None:
        i = cuda.threadIdx.x
        down[i] = cuda.shfl_down_sync(0xFFFFFFFF, i, 1)
        up[i] = cuda.shfl_up_sync(0xFFFFFFFF, i, 2)
        across[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)

    outs = [buffer(32) for _ in range(3)]
    find_device().launch(kernel, 1, 32, *outs)
    down, up, across = map(find_device().download, outs)
    lanes = np.arange(32)
    np.testing.assert_array_equal(down, np.minimum(lanes + 1, 31))
    np.testing.assert_array_equal(up, np.where(lanes < 2, lanes, lanes - 2))
    np.testing.assert_array_equal(across, lanes ^ 16)
