"""Object code loaded without LLVM, in processes that never import a compiler."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.native import Kernel, KernelCall, KernelSequence, access, compile_kernel, compiler, kernel_cache
from opstage.compiler.native import compiler as objects
from opstage.compiler.native.compiler import object_code

pytestmark = pytest.mark.skipif(
    kernel_cache.processor()[:2] != ("linux", "x86_64"), reason="elsewhere object code is loaded by LLVM"
)


def powers() -> Any:
    """Constants, calls of the mathematics library, and memory to be cleared."""
    from opstage.compiler.native.intrinsics import int64s

    load, store = access.load("float64"), access.store("float64", access.written(0))

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        w = int64s(arguments, 2)
        for i in range(lo, hi):
            x = load(w[0], i)
            store(w[0], i, np.sin(x) * 0.1 + np.log1p(x) ** 2.5 if x > 0.25 else 7.0)

    return kernel


@pytest.fixture(scope="module")
def code() -> bytes:
    return object_code(powers(), "powers")


def run(address: int) -> Any:
    x = np.linspace(0, 2, 9)
    KernelSequence((KernelCall(Kernel("powers", address), len(x), np.array([x.ctypes.data, len(x)], np.uint64)),)).run()
    return x


def test_it_does_what_llvm_makes_of_it(code: bytes) -> None:
    found = run(objects.load_object(code, "powers"))
    np.testing.assert_array_equal(found, run(compiler._load_by_llvm(code, "powers")))
    x = np.linspace(0, 2, 9)
    np.testing.assert_allclose(found, np.where(x > 0.25, np.sin(x) * 0.1 + np.log1p(x) ** 2.5, 7.0), rtol=1e-14)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what may be run")
def test_code_cannot_be_written_to(code: bytes) -> None:
    address = objects.load_object(code, "powers")
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if start <= address < stop:
            assert line.split()[1] == "r-xp"
            return
    raise AssertionError("the code is not mapped")


def changed(code: bytes, old: bytes, new: bytes) -> bytes:
    assert old in code and len(old) == len(new)
    return code.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda code: b"", "format"),
        (lambda code: b"MZ" + code[2:], "format"),
        (lambda code: code[:18] + b"\xb7\0" + code[20:], "format"),  # for another processor
        (lambda code: code[: len(code) // 2], "buffer"),
        (lambda code: changed(code, b"\0log1p\0", b"\0log1q\0"), "log1q is neither in the C library"),
        (lambda code: changed(code, b"\0powers\0", b"\0power5\0"), "the object code lacks the function powers"),
    ],
    ids=["empty", "another format", "another processor", "cut off", "an unknown function", "no such entry"],
)
def test_what_it_does_not_know_it_leaves_alone(code: bytes, damage: Any, message: str) -> None:
    with pytest.raises(objects.CannotLoad, match=message):
        objects.load_object(damage(code), "powers")


def test_an_unknown_kind_of_reference_is_left_alone(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "ADDRESS", 99)
    with pytest.raises(objects.CannotLoad, match="a relocation of kind 1 is not supported"):
        objects.load_object(code, "powers")


def test_llvm_loads_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(code: bytes, entry: str) -> int:
        raise objects.CannotLoad("made up")

    monkeypatch.setattr(objects, "load_object", fail)
    monkeypatch.setattr(compiler, "_kernels", {})
    assert run(compile_kernel("powers", "loaded by LLVM", powers).address)[0] == 7.0


# Other processes -----------------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys
import numpy as np
if "numba first" in sys.argv:
    import numba
import opstage
if "no team" in sys.argv:
    from opstage.compiler.native import thread_pool
    thread_pool.has_team = lambda: False
options = opstage.Options(backend="compiled", dtype="float64")

def loss(ops, p, x, y):
    return ops.cross_entropy(ops.linear(p["w"], p["b"], ops.tanh(x)), y)

rng = np.random.default_rng(0)
trainer = opstage.scalar_trainer(loss, {"w": rng.normal(size=(10, 300)), "b": np.zeros(10)}, options=options)
x, y = rng.normal(size=(64, 300)), rng.integers(0, 10, 64)
losses = [float(trainer.adamw_step(0.01, 0.9, 0.999, 1e-8, 0.01, x, y)) for _ in range(3)]
imported = sorted({"numba", "llvmlite"} & set(sys.modules))
if "numba after" in sys.argv:
    eager = opstage.scalar_trainer(loss, trainer.get_params(), options=options.replace(backend="eager"))
    float(eager.step(0.1, x, y))
    losses.append(float(trainer.adamw_step(0.01, 0.9, 0.999, 1e-8, 0.01, x, y)))
threads = len(os.listdir("/proc/self/task"))
print(json.dumps({"losses": losses, "imported": imported, "threads": threads}))
"""


def started(folder: Path, *arguments: str, **variables: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(Path(opstage.__file__).parents[1]), **variables}
    environment |= {"NUMBA_CACHE_DIR": str(folder), "OPENBLAS_NUM_THREADS": "1"}
    process = [sys.executable, "-c", PROGRAM, *arguments]
    return json.loads(subprocess.run(process, env=environment, check=True, capture_output=True, text=True).stdout)


def test_a_process_that_finds_its_kernels_imports_no_compiler(tmp_path: Path) -> None:
    cold, warm = started(tmp_path), started(tmp_path, NUMBA_NUM_THREADS="3")
    assert (cold["imported"], warm["imported"]) == (["llvmlite"], [])
    assert warm["threads"] == 3
    np.testing.assert_allclose(warm["losses"], cold["losses"], rtol=1e-12)
    one = started(tmp_path, NUMBA_NUM_THREADS="1")
    assert (one["imported"], one["threads"]) == ([], 1)
    np.testing.assert_allclose(one["losses"], cold["losses"], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["", "numba first", "numba after"])
def test_it_needs_no_threads_of_numba(tmp_path: Path, argument: str) -> None:
    cold, warm = started(tmp_path, argument), started(tmp_path, argument, NUMBA_THREADING_LAYER="workqueue")
    assert warm["losses"] == cold["losses"]
    assert bool(warm["imported"]) == (argument == "numba first")
    assert warm["threads"] == len(os.sched_getaffinity(0))


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["default", "omp", "workqueue"])
@pytest.mark.parametrize("argument", ["", "numba first", "numba after"])
def test_where_there_is_no_team_it_shares_the_threads_with_numba(tmp_path: Path, layer: str, argument: str) -> None:
    with_team = started(tmp_path, argument)
    cold = started(tmp_path, "no team", argument, NUMBA_THREADING_LAYER=layer)
    warm = started(tmp_path, "no team", argument, NUMBA_THREADING_LAYER=layer)
    assert warm["losses"] == cold["losses"] == with_team["losses"]
    assert bool(warm["imported"]) == (argument == "numba first" or layer == "workqueue")
    workers = len(os.sched_getaffinity(0))
    assert warm["threads"] <= workers + (layer == "workqueue")


def test_the_processor_is_told_without_llvm_and_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = kernel_cache.processor.__wrapped__()
    assert "fpu" in told[-1].split()
    monkeypatch.setattr(kernel_cache, "_INFORMATION", tmp_path / "nothing")
    by_llvm = kernel_cache.processor.__wrapped__()
    assert "x86_64" in by_llvm[0] and by_llvm != told
    avx512 = kernel_cache.has_avx512.__wrapped__()
    monkeypatch.setattr(kernel_cache, "processor", lambda: by_llvm)
    assert kernel_cache.has_avx512.__wrapped__() == avx512


def test_functions_of_the_c_library_are_found_where_ctypes_finds_them() -> None:
    assert objects.library_function("pow") == ctypes.cast(ctypes.CDLL("libm.so.6").pow, ctypes.c_void_p).value
