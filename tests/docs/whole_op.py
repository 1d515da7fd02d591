"""Measure an op of docs/adding-an-op.md in the copy that has it: `python whole_op.py NAME` prints JSON.

Kernels per call, and memory as predicted and as counted; with NUMBA_ENABLE_CUDASIM=1 launches on the simulated device.
Values are compared on the way: eager, compiled, exported to ONNX and on the device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import opstage
from opstage import Options, Spec, optim
from opstage.init import Declaration, ones
from opstage.models import Model

NAME = sys.argv[1]
ROWS, COLUMNS = 400, 250


def program(ops: Any, x: Any) -> Any:
    """The op itself."""
    return getattr(ops, NAME)(x)


def gradient(ops: Any, x: Any) -> Any:
    """The derivative of its sum."""
    return opstage.transform.grad(ops, lambda inner, x: inner.sum(program(inner, x)), x)


def operand() -> Any:
    """Numbers that both ops take: inside (0, 1)."""
    return np.random.default_rng(0).uniform(0.1, 0.9, (ROWS, COLUMNS)).astype(np.float32)


def on_the_cpu() -> dict[str, Any]:
    from opstage.compiler.codegen.cpu.kernels import fused
    from opstage.interpreters.graph.profile import explain
    from opstage.ops.catalogue import primitives
    from opstage.ops.types import TensorType
    from tests.interop.onnx.runs import checked, run_session, session_of

    x = operand()
    primitive = primitives()[NAME]
    answers: dict[str, Any] = {}
    if primitive.decomposition is not None:
        made = fused(primitive, (TensorType(x.shape, x.dtype),), {})
        assert made is not None
        answers["eager kernels"] = len(made._steps)
    for what, function in (("value", program), ("gradient", gradient)):
        graph = opstage.record(function, x)
        found = explain(graph)
        answers[f"compiled {what}"] = [found.kernels, found.fused, found.host]
        eager = opstage.run(function, x, options=Options(dtype="float64"))
        (exported,) = run_session(session_of(checked(graph)), graph, x)
        for result in (exported, opstage.run(function, x, options=Options(backend="compiled"))):
            np.testing.assert_allclose(result, eager, rtol=1e-5, atol=1e-6)
    return answers | memory()


def loss(ops: Any, params: Any, x: Any, *, train: bool = False) -> Any:
    """A loss of the op, for `opstage check`."""
    return ops.sum(program(ops, ops.mul(params["w"], x)))


def memory() -> dict[str, Any]:
    """Per backend: bytes that `opstage check --memory` says, and bytes that an allocator counts."""
    from tests.memory.measured import measured_peak

    shapes = f"{ROWS} {COLUMNS}"
    own = Path("own_loss.py")
    own.write_text(
        f"def loss(ops, params, x):\n    return ops.sum(ops.{NAME}(ops.mul(params['w'], x)))\n", encoding="utf-8"
    )
    words = ["check", f"{own}:loss", "--step", "--input", f"x: {shapes}", "--param", f"w: {shapes}", "--memory"]
    words += ["--optimizer", "sgd", "--format", "json"]
    command = [sys.executable, "-c", "from opstage.cli import main; main()", *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (target,) = json.loads(printed)["targets"]
    said = {entry["interpreter"]: entry["peak_bytes"] for entry in target["sections"]["memory"]["data"]}
    declared = {"w": Declaration((ROWS, COLUMNS), ones)}
    model = Model("own", None, declared, loss, lambda ops, *_: {}, (Spec(shapes),))
    return {
        f"memory {backend}": [
            said[f"{backend} on cpu"],
            measured_peak(model, {}, optim.sgd(), Options(backend=backend)),
        ]
        for backend in ("eager", "compiled")
    }


def on_a_device() -> dict[str, Any]:
    from opstage.compiler.gpu.simulator import Simulator

    x = operand()[:4, :25]
    launched: list[Any] = []
    launch = Simulator.launch

    def counting(self: Any, kernel: Any, *arguments: Any) -> None:
        launched.append(kernel)
        launch(self, kernel, *arguments)

    Simulator.launch = counting  # type: ignore[method-assign]
    answers = {}
    for backend in ("eager", "compiled"):
        result = opstage.run(program, x, options=Options(backend=backend, device="cuda"))
        np.testing.assert_allclose(result, opstage.run(program, x), rtol=1e-5, atol=1e-6)
        answers[f"{backend} kernels"] = len(launched)
        launched.clear()
    return answers


if __name__ == "__main__":
    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    print(json.dumps(on_a_device() if simulated else on_the_cpu()))
