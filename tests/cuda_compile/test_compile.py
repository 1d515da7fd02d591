"""Compiling a kernel: what it takes is told, what does not compile is named, a damaged cubin is made anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu import compiler as compiling
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.buffer import signature_of
from opstage.compiler.gpu.compiler import Resources, compile_kernel, resources
from opstage.compiler.gpu.language import cuda, quotient, remainder, steps, unrolled_steps
from opstage.compiler.gpu.simulator import product_kernel
from opstage.ops.errors import UnsupportedError
from opstage.options import Options

from .recorder import Recorder

SM_90 = (9, 0)
POINTERS = ("float32*", "float32*")


def twice(out: Any, x: Any) -> None:
    out[cuda.grid(1)] = x[cuda.grid(1)] * np.float32(2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)
    return tmp_path


# What a kernel takes -------------------------------------------------------------------------------------------------


def test_a_python_number_that_makes_float64_of_a_float32_is_seen(folder: Path) -> None:
    def tenth(out: Any, x: Any) -> None:
        out[cuda.grid(1)] = x[cuda.grid(1)] * 0.1

    assert compile_kernel(tenth, POINTERS, SM_90).resources.doubles > 0
    assert compile_kernel(twice, POINTERS, SM_90).resources.doubles == 0


def by_python(count: Any, out: Any, x: Any, width: Any) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = x[i // width] + x[i % width]


def by_counting(count: Any, out: Any, x: Any, width: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = x[quotient(i, width)] + x[remainder(i, width)]


def summing(count: Any, out: Any, x: Any, width: Any) -> None:
    total = np.float32(0)
    for i in unrolled_steps(cuda.grid(1), count, width):
        total += x[i]
    out[0] = total


def test_divisions_of_64_bits_are_seen(folder: Path) -> None:
    signature = "int32", *POINTERS, "int32"
    assert compile_kernel(by_python, signature, SM_90).resources.divisions > 0
    assert compile_kernel(by_counting, signature, SM_90).resources.divisions == 0
    assert compile_kernel(summing, signature, SM_90).resources.divisions == 0


def test_a_loop_in_steps_is_not_divided_and_one_that_only_reads_is_unrolled() -> None:
    signature = "int32", *POINTERS, "int32"
    divided, unrolled = (compiling.to_ptx(kernel, signature, SM_90) for kernel in (by_counting, summing))
    assert divided.count("div.u32") == 1 and "rem." not in divided  # one for both of its body, none for the loop
    assert unrolled.count("ld.global") > 4


def test_shared_memory_is_counted(folder: Path) -> None:
    operand, bias = ("float32*", "int32", "int32", "int32"), ("float32*", "int32")
    signature = *("int32",) * 3, *operand, *operand, *operand, *bias, "int32"
    compiled = compile_kernel(product_kernel(False, True, 16), signature, SM_90)
    assert compiled.resources.shared == 2 * 16 * 17 * 4
    assert b".nv.shared.opstage_product" in compiled.cubin


def test_what_ptxas_says_is_read() -> None:
    log = """ptxas info    : Function properties for f
    ptxas         .     48 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
    ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size"""
    ptx = """.visible .shared .align 4 .b8 tile[2048];
    .reg .f64 %fd<3>;
    mul.f64 %fd2, %fd1, 0d3FE0000000000000;
    div.s64 %rd3, %rd1, %rd2;
    div.u32 %r3, %r1, %r2;
    rem.u64 %rd4, %rd1, %rd2;
    mul.f32 %f2, %f1, %f1;"""
    assert resources(log, ptx) == Resources(registers=255, stack=48, spilled=28, shared=2048, doubles=1, divisions=2)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_compile_is_named_with_its_signature(folder: Path) -> None:
    def wrong(out: Any, x: Any) -> None:
        out[0] = x.shape[0]

    with pytest.raises(
        UnsupportedError, match=r"kernel wrong\(float32\*, float32\*\) did not compile for sm_90(.|\n)*shape"
    ):
        compile_kernel(wrong, POINTERS, SM_90)
    assert list(folder.iterdir()) == []


def test_the_op_that_launched_it_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> str:
        raise TypeError("no such type")

    class Compiler(Recorder.__base__):  # type: ignore[misc, name-defined]
        """A recorder that compiles what it is asked to launch."""

        allocate, deallocate, synchronize = Recorder.allocate, Recorder.deallocate, Recorder.synchronize
        upload, download, product = Recorder.upload, Recorder.download, Recorder.product
        empty_cache, part = Recorder.empty_cache, Recorder.part

        def launch(self, kernel: Any, blocks: int, threads: int, *arguments: Any) -> None:
            compile_kernel(kernel, signature_of(arguments), SM_90)

    monkeypatch.setattr(compiling, "to_ptx", failing)
    monkeypatch.setattr(probe, "_found", lambda number: Compiler())
    with pytest.raises(UnsupportedError, match=r"^exp at .*: the kernel exp\(int32, float32\*, float32\*\) did not"):
        opstage.run(lambda ops, x: ops.exp(x), np.ones(3, np.float32), options=Options(device="cuda"))


def test_what_the_linker_cannot_resolve_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func missing;\n"
        ".visible .entry kernel() { call missing; ret; }"
    )
    monkeypatch.setattr(compiling, "to_ptx", lambda *_: ptx)
    with pytest.raises(UnsupportedError, match="missing"):
        compile_kernel(twice, POINTERS, SM_90)


# On disk --------------------------------------------------------------------------------------------------------------


def test_a_cubin_is_compiled_once_and_a_damaged_one_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    to_ptx = compiling.to_ptx
    monkeypatch.setattr(compiling, "to_ptx", lambda *given: asked.append(given) or to_ptx(*given))
    first = compile_kernel(twice, POINTERS, SM_90)
    assert compile_kernel(twice, POINTERS, SM_90) == first
    assert len(asked) == 1
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert compile_kernel(twice, POINTERS, SM_90) == first
    assert len(asked) == 2
    assert compile_kernel(twice, ("float32*", "int32*"), SM_90) != first
    assert compile_kernel(twice, POINTERS, (8, 0)) != first
    assert len(asked) == 4 and len(list(folder.iterdir())) == 3


def test_a_cubin_is_compiled_anew_by_other_compilers(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By those that are loaded; what is installed as a wheel says nothing of them."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "of a wheel")
    asked: list[Any] = []
    to_ptx = compiling.to_ptx
    monkeypatch.setattr(compiling, "to_ptx", lambda *given: asked.append(given) or to_ptx(*given))

    def compiled() -> int:
        compiling.compilers.cache_clear()
        compile_kernel(twice, POINTERS, SM_90)
        return len(asked)

    assert [compiled(), compiled()] == [1, 1]
    for package in ("numba", "numba_cuda", "llvmlite", "cuda.core", "cuda.bindings"):
        before = len(asked)
        with monkeypatch.context() as patch:
            patch.setattr(f"{package}.__version__", "0.0.1")
            assert [compiled(), compiled()] == [before + 1] * 2, package
    files = tmp_path_factory.mktemp("libraries")
    path_of = compiling.library_path
    for library in ("nvvm", "libdevice", "nvJitLink"):
        assert Path(str(path_of(library))).is_file(), "it is found where it was loaded from"
        file = files / library
        for content in (b"one", b"another"):
            file.write_bytes(content)
            before = len(asked)
            with monkeypatch.context() as patch:
                patch.setattr(
                    compiling,
                    "library_path",
                    lambda n, library=library, file=file: file if n == library else path_of(n),
                )
                assert [compiled(), compiled()] == [before + 1] * 2, library
    before = len(asked)
    assert compiled() == before
    compiling.compilers.cache_clear()


def test_a_folder_that_cannot_be_written_to_only_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    assert compile_kernel(twice, POINTERS, SM_90) == compile_kernel(twice, POINTERS, SM_90)


def test_two_processes_may_compile_the_same(tmp_path: Path) -> None:
    code = (
        "from opstage.compiler.gpu.compiler import compile_kernel\n"
        "from opstage.interpreters.eager_cuda.kernels.layout import fill_kernel\n"
        "print(compile_kernel(fill_kernel, ('int32', 'float32*', 'float32'), (9, 0)).resources)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1 and "registers" in said.pop()
    assert len(list(tmp_path.rglob("*.cubin"))) == 1
