"""Kernels compiled by several processes: all of them come about, whoever fails, and nobody is left at work."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from opstage.compiler.codegen.cpu import kernels as compilation
from opstage.compiler.codegen.cpu.arguments import LoopSource
from opstage.compiler.codegen.cpu.kernels import Compilation
from opstage.compiler.native import compiler
from opstage.compiler.native.compiler import is_known
from opstage.compiler.native.kernel_cache import cache_folder


def texts(name: str) -> list[LoopSource]:
    body = """def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, 1)
    for i in range(lo, hi):
        store_a(w[0], i, float32(i) + c)
"""
    accesses = (("store_a", "store", "float32", "written 0"),)
    return [LoopSource(f"{name}{i}", f"c = float32({i})  # {name}", body, accesses) for i in range(4)]


@pytest.fixture(autouse=True)
def _on_three_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "_START", 2)
    monkeypatch.setattr(compilation, "usable_cores", lambda: 3)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What this process itself compiles."""
    made: list[Any] = []
    object_code = compiler.object_code

    def noted(function: Any, entry: str) -> bytes:
        made.append(function)
        return object_code(function, entry)

    monkeypatch.setattr(compiler, "object_code", noted)
    return made


def test_others_compile_what_this_process_then_finds(here: list[Any]) -> None:
    wanted = texts("shared")
    with Compilation() as shared:
        shared.begin([*wanted, *wanted])
        assert [process.wait() for process in shared._others] == [0, 0]
        assert all(is_known(text.content) for text in wanted)
        kernels = shared.end(wanted)
    assert here == [] and list(kernels) == wanted and all(kernel.address for kernel in kernels.values())


@pytest.mark.parametrize("failing", ["cannot be started", "end at once"])
def test_where_they_fail_this_process_compiles_all(
    failing: str, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **options: Any) -> Any:
        raise OSError("no more processes")

    if failing == "cannot be started":
        monkeypatch.setattr(subprocess, "Popen", none)
    else:
        monkeypatch.setattr(compilation, "_CHILD", "raise SystemExit(1)")
    wanted = texts(failing.split()[0])
    with Compilation() as alone:
        alone.begin(wanted)
        kernels = alone.end(wanted)
    assert len(here) == 4 and list(kernels) == wanted


def test_few_are_compiled_here(here: list[Any]) -> None:
    wanted = texts("few")[:1]
    with Compilation() as alone:
        alone.begin(wanted)
        assert alone._others == []
        alone.end(wanted)
    assert len(here) == 1


def test_on_an_error_nobody_is_left_at_work() -> None:
    shared = Compilation()
    with pytest.raises(KeyboardInterrupt), shared:
        shared.begin(texts("broken off"))
        raise KeyboardInterrupt
    assert len(shared._others) == 2 and all(process.poll() is not None for process in shared._others)
    folder = cache_folder()
    assert folder is not None and all(path.suffix == ".o" for path in folder.iterdir())
