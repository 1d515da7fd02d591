"""Machine code of programs that nobody has any more: given back, and never while somebody may run it."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.native import compiler
from opstage.compiler.native import compiler as objects
from opstage.interpreters.graph.executor import CpuExecutor
from tests.graph.executor_common import in_threads

X = np.linspace(-1, 1, 60).reshape(3, 20)

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what is mapped")


@pytest.fixture(autouse=True)
def _no_recent_ones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()
    monkeypatch.setattr(compiler, "_recent", deque(maxlen=0))
    yield


def executor_of(number: float) -> CpuExecutor:
    """Of a program with a kernel of its own, for a constant stands in it."""
    graph = opstage.record(lambda ops, x: ops.sin(x * number) + number, X, options=Options(dtype="float64"))
    return CpuExecutor(graph, Options(dtype="float64"))


def kernels_of(executor: CpuExecutor) -> list[Any]:
    assert executor.plan is not None
    return [step.loop.kernel for step in executor.plan.steps]  # type: ignore[union-attr]


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if start <= address < stop:
            return "x" in line.split()[1]
    return False


def test_code_goes_with_the_last_program_that_has_it() -> None:
    one, two = executor_of(0.123), executor_of(0.123)
    (kernel,) = kernels_of(one)
    assert kernels_of(two) == [kernel]
    address = kernel.address
    del kernel, one
    assert is_mapped(address)
    np.testing.assert_allclose(two.run([X])[0], np.sin(X * 0.123) + 0.123)
    del two
    gc.collect()
    assert not is_mapped(address) and address not in objects._mappings


def test_code_that_comes_back_is_loaded_anew() -> None:
    for _ in range(3):
        executor = executor_of(0.321)
        np.testing.assert_allclose(executor.run([X])[0], np.sin(X * 0.321) + 0.321)
        del executor
        gc.collect()


def test_the_last_ones_to_be_loaded_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_recent", deque(maxlen=2))
    addresses = []
    for number in (0.51, 0.52, 0.53):
        (kernel,) = kernels_of(executor_of(number))
        addresses.append(kernel.address)
        del kernel
    gc.collect()
    assert [is_mapped(address) for address in addresses] == [False, True, True]


def test_code_that_cannot_be_linked_leaves_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[int] = []
    released: list[int] = []
    make, release = objects.map_memory, objects._unmap

    def making(nbytes: int) -> int:
        mapped.append(make(nbytes))
        return mapped[-1]

    def releasing(base: int, nbytes: int) -> None:
        released.append(base)
        release(base, nbytes)

    def fail(base: int, nbytes: int) -> None:
        raise objects.CannotLoad("made up")

    codes: list[bytes] = []
    load = objects.load_object

    def loading(code: bytes, entry: str) -> int:
        codes.append(code)
        monkeypatch.setattr(objects, "_make_executable", fail)
        return load(code, entry)

    monkeypatch.setattr(objects, "map_memory", making)
    monkeypatch.setattr(objects, "_unmap", releasing)
    monkeypatch.setattr(objects, "load_object", loading)
    np.testing.assert_allclose(executor_of(0.77).run([X])[0], np.sin(X * 0.77) + 0.77)  # LLVM has loaded it
    assert codes and mapped and mapped == released


def test_programs_dropped_while_others_run() -> None:
    """Threads that make programs, run them and let go of them; some share their code."""
    wrong: list[float] = []

    def work(own: int) -> None:
        for turn in range(15):
            number = 0.9 + (own + turn) % 3 / 100
            executor = executor_of(number)
            for _ in range(20):
                if not np.allclose(executor.run([X])[0], np.sin(X * number) + number):
                    wrong.append(number)

    in_threads(3, work)
    assert not wrong
