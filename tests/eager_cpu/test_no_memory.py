"""Where the system has no memory for a tensor: one error, which says what for and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, OutOfMemoryError

HUGE = (2**25, 2**24)  # 2 PiB of float32, more than a process can address, however freely the system promises memory


def one_operand(ops: Any, x: Any) -> Any:
    return ops.exp(ops.broadcast_to(x, shape=HUGE))


def two_operands(ops: Any, x: Any) -> Any:
    wide = ops.broadcast_to(x, shape=HUGE)
    return ops.add(wide, wide)


def composite(ops: Any, x: Any) -> Any:
    return ops.gelu(ops.broadcast_to(x, shape=HUGE))


def static_parameters(ops: Any, x: Any) -> Any:
    return ops.pad(x, padding=((0, HUGE[0] - 1), (HUGE[1] - 1, 0)))


def constant(ops: Any, x: Any) -> Any:
    return ops.full(shape=HUGE, value=1.0)


def view(ops: Any, x: Any) -> Any:
    return ops.broadcast_to(x, shape=HUGE)


def in_a_loop(ops: Any, x: Any) -> Any:
    wide = ops.broadcast_to(x, shape=HUGE)
    return ops.scan(lambda ops, carry, _: (ops.exp(ops.add(carry, carry)), None), wide, None, length=3)[0]


CASES = {"exp": one_operand, "add": two_operands, "gelu": composite, "pad": static_parameters}


@pytest.mark.parametrize("op", CASES)
def test_op_without_memory_reports_size_and_line(op: str) -> None:
    with pytest.raises(OutOfMemoryError, match=r"\(33554432, 16777216\) float32, which takes 2048.0 TiB") as e:
        opstage.run(CASES[op], np.ones((1, 1), np.float32))
    assert isinstance(e.value, MemoryError)
    assert e.value.op == op
    assert e.value.source is not None and e.value.source.file == __file__
    assert f"ops.{op}(" in e.value.source.text
    assert "opstage check --memory" in str(e.value)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("program", [composite, in_a_loop])
def test_program_without_memory_raises_no_error_of_numpy(program: Any, backend: str) -> None:
    with pytest.raises(OutOfMemoryError, match=r"out of memory|lacks the memory"):
        opstage.run(program, np.ones((1, 1), np.float32), options=Options(backend=backend))


@pytest.mark.parametrize("program", [constant, view])
def test_view_without_memory_for_a_copy_is_reported(program: Any) -> None:
    with pytest.raises(OutOfMemoryError, match=r"out of memory: .*\(33554432, 16777216\)") as e:
        opstage.run(program, np.ones((1, 1), np.float32))
    assert "opstage check --memory" in str(e.value)


def test_gradient_without_memory_is_reported() -> None:
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        opstage.value_and_grad(lambda ops, x: ops.sum(one_operand(ops, x)), np.ones((1, 1), np.float32))


def test_memory_error_outside_of_ops_is_reported() -> None:
    def hungry(ops: Any, x: Any) -> Any:
        raise MemoryError

    with pytest.raises(OutOfMemoryError, match="out of memory; use smaller batches"):
        opstage.run(hungry, np.ones(1))
