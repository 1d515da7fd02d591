"""Ops declared outside of Opstage, and `debug.show`, on a device."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, debug
from opstage.compiler.gpu.language import cuda, steps
from opstage.ops import catalogue as registered
from tests.ops import test_ops

X = np.array([1.0, 2.0, 6.0])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_on_a_device(backend: str) -> None:
    def loss(ops: Any, x: Any) -> Any:
        return ops.sum(debug.show(ops, x * 2.0, "h", gradient=True))

    lines: list[str] = []
    with debug.showing_to(lines.append):
        for x in (X, 2 * X):
            opstage.value_and_grad(loss, x, options=Options(device="cuda", backend=backend))
    assert lines == [
        "h: (3,) float32 min 2, mean 6, max 12 (step 0)",
        "grad h: (3,) float32 min 1, mean 1, max 1 (step 0)",
        "h: (3,) float32 min 4, mean 12, max 24 (step 0)",
        "grad h: (3,) float32 min 1, mean 1, max 1 (step 0)",
    ]


def test_rules_get_refs_with_operators() -> None:
    value, gradient = test_ops.expected(test_ops.X.astype(np.float64))
    found, grad = opstage.value_and_grad(test_ops.program, test_ops.X, options=Options(device="cuda"))
    np.testing.assert_allclose(found, value, rtol=1e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-6)


def test_a_compiled_step_shows_what_it_read_before_it_wrote() -> None:
    """As on the CPU, in steps that write over their parameters, and in loops."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        debug.show(ops, w, "w")

        def turn(ops: Any, c: Any, row: Any) -> Any:
            h = debug.show(ops, ops.tanh(c * row), "h", gradient=True)
            return ops.exp(debug.show(ops, h + 1.0, "k")), h

        last, _ = ops.scan(turn, w, x)
        masks = debug.show(ops, last > 1.0, "mask")
        return ops.sum(ops.select(masks, last * last, last)) + ops.sum(debug.show(ops, ops.transpose2d(x), "t"))

    rows = np.arange(6.0).reshape(2, 3) / 7
    seen: dict[str, list[str]] = {}
    for device in ("cpu", "cuda"):
        options = Options(device=device, backend="compiled")
        trainer = opstage.scalar_trainer(loss, X / 4, options=options)
        with debug.showing_to(seen.setdefault(device, []).append):
            for _ in range(3):
                trainer.step(0.1, rows)
    order = {device: sorted(lines, key=lambda line: line.startswith("grad")) for device, lines in seen.items()}
    words, values = zip(*[_words_and_numbers("\n".join(lines)) for lines in order.values()], strict=True)
    assert words[0] == words[1] and len(set(seen["cuda"])) == len(seen["cuda"])
    np.testing.assert_allclose(*values, rtol=1e-5)


def _words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    number = r"-?\d+\.?\d*(?:e[-+]\d+)?"
    return re.split(number, text), [float(found) for found in re.findall(number, text)]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_kernel_decomposition_or_the_error_that_names_the_field(backend: str) -> None:
    def kernel(device: Any, types: Any, x: Any) -> Any:
        out = device.empty(types[0])
        device.each(_triple, out.size, out, x)
        return out

    options = Options(device="cuda", backend=backend)
    try:
        for how in ({"kernels": {"cuda": kernel}}, {"decomposition": lambda ops, x: x * 3.0}):
            op = opstage.custom_op("t_tripled", operands=("x",), shape=lambda x: x, differentiable=False, **how)
            np.testing.assert_array_equal(opstage.run(op, X, options=options), 3 * X)
            registered.unregister("t_tripled")
        host = opstage.custom_op(
            "t_tripled", operands=("x",), shape=lambda x: x, differentiable=False, kernels={"cpu": lambda x: 3 * x}
        )
        with pytest.raises(opstage.UnsupportedError, match=r"t_tripled.*decomposition=.*kernel"):
            opstage.run(lambda ops, x: host(ops, x), X, options=options)
    finally:
        registered.unregister("t_tripled")


def _triple(count: Any, out: Any, x: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = x[i] * np.float32(3)
