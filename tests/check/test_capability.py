"""Where a program runs, told from tables, against running it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.interop.onnx.operators import EXPORTS
from opstage.interpreters.shape_check.capability import Answer, capabilities
from opstage.models import model
from opstage.ops import matmul as linalg
from opstage.options import Options

X = np.linspace(0.25, 2.0, 6).reshape(2, 3)


def rational(ops: Any, x: Any) -> Any:
    return ops.sum(ops.mul(x, x))


def exponential(ops: Any, x: Any) -> Any:
    return ops.sum(ops.exp(x))


def softened(ops: Any, x: Any) -> Any:
    return ops.softmax(x, axis=-1)


def looped(ops: Any, x: Any) -> Any:
    def body(inner: Any, carry: Any, row: Any) -> tuple[Any, Any]:
        return inner.tanh(inner.add(carry, row)), None

    return ops.scan(body, ops.full(shape=(3,), value=0.0), x)[0]


def answers(program: Callable[..., Any]) -> dict[tuple[str, str], Answer]:
    report = opstage.check(program, Spec("B 3"))
    assert report.ok, str(report)
    return {(answer.where, answer.dtype): answer for answer in capabilities(report, Options())}


@pytest.mark.parametrize("program", [rational, exponential, softened, looped])
def test_an_interpreter_runs_what_it_is_said_to_run(program: Callable[..., Any]) -> None:
    told = answers(program)
    for backend in ("eager", "compiled"):
        for dtype in ("float32", "float64", "exact"):
            options = Options(backend=backend, dtype=dtype)  # type: ignore[arg-type]
            try:
                opstage.run(program, X, options=options)
                runs = True
            except opstage.UnsupportedError:
                runs = False
            assert told[f"{backend} on cpu", dtype].runs == runs, (backend, dtype)


def test_the_op_at_fault_is_named_with_its_line() -> None:
    for program, op, text in (
        (exponential, "exp", "return ops.sum(ops.exp(x))"),
        (looped, "tanh", "return inner.tanh(inner.add(carry, row)), None"),
    ):
        obstacle = answers(program)["eager on cpu", "exact"].obstacle
        assert obstacle is not None and obstacle.op == op and "does not support" in obstacle.reason
        assert obstacle.source is not None and obstacle.source.text == text


def test_a_device_that_is_not_there_is_said_to_be_missing() -> None:
    obstacle = answers(rational)["eager on cuda", "float32"].obstacle
    if obstacle is not None:
        assert "device 'cuda'" in obstacle.reason and obstacle.op == ""


def test_onnx_says_what_its_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = model("mlp")
    report = opstage.check_step(chosen.loss, chosen.init, *chosen.batch)
    asked = {a.where: a for a in capabilities(report, Options()) if a.where.startswith("ONNX")}
    assert [(where, a.runs) for where, a in asked.items()] == [
        ("ONNX, the forward pass", True),
        ("ONNX, one training step", True),
    ]
    for primitive in (linalg.LINEAR, linalg.MATMUL):  # and what it is made of
        monkeypatch.delitem(EXPORTS, primitive)
    obstacle = {a.where: a for a in capabilities(report, Options())}["ONNX, the forward pass"].obstacle
    assert obstacle is not None and obstacle.op == "linear" and "ONNX cannot say matmul" in obstacle.reason
    assert obstacle.source is not None and "linear" in obstacle.source.text
