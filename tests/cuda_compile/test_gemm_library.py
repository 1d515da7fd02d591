"""Descriptions of products as cuBLASLt itself reads them, where the library is at hand; they need no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any

import pytest

from opstage.compiler.gpu import cublas as gemm
from opstage.compiler.gpu.cublas import Gemm, Shape
from opstage.ops.errors import UsageError

ROWS, COLUMNS, LEADING, COUNT, STEP = 2, 3, 4, 5, 6  # of a layout
WORKSPACE, REDUCTIONS = 1, 3  # of a preference


class Without:
    """The library, save what it can do only on a GPU: that is noted."""

    def __init__(self, library: Any):
        self.library = library
        self.asked: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"):
            return lambda *given: self.note(name, given)
        return getattr(self.library, name)

    def note(self, name: str, given: Any) -> int:
        self.asked[name] = given
        if name == "cublasLtMatmulAlgoGetHeuristic":
            given[-1]._obj.value = 1
        return 0

    def read(self, function: str, thing: Any, attribute: int, kind: Callable[[], Any]) -> int:
        value, written = kind(), ctypes.c_size_t()
        get = getattr(self.library, function)
        get.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        assert get(thing, attribute, byref(value), ctypes.sizeof(value), byref(written)) == 0
        assert written.value == ctypes.sizeof(value)
        return int(value.value)

    def layout(self, layout: Any) -> list[int]:
        kinds = {
            ROWS: ctypes.c_uint64,
            COLUMNS: ctypes.c_uint64,
            LEADING: ctypes.c_int64,
            COUNT: ctypes.c_int32,
            STEP: ctypes.c_int64,
        }
        return [self.read("cublasLtMatrixLayoutGetAttribute", layout, which, kind) for which, kind in kinds.items()]


@pytest.fixture
def library() -> Without:
    try:
        return Without(gemm.load())
    except UsageError:
        pytest.skip("cuBLASLt is not here; the extra 'cuda' has it")


@pytest.mark.parametrize(("precision", "compute"), [("fp32", 68), ("tf32", 77), ("bf16", 75)])
def test_a_product_is_described_as_the_library_reads_it(library: Without, precision: Any, compute: int) -> None:
    Gemm(library, lambda nbytes: 0, 0).product(0, 0, 0, Shape(5, 2, 3, 4), precision)
    _, operation, a, b, c, d, preference, *_ = library.asked["cublasLtMatmulAlgoGetHeuristic"]
    assert library.layout(a) == [3, 4, 3, 5, 12]  # yᵀ, column by column
    assert library.layout(b) == [4, 2, 4, 5, 8]
    assert c is d and library.layout(d) == [3, 2, 3, 5, 6]
    assert library.read("cublasLtMatmulDescGetAttribute", operation, 0, ctypes.c_int32) == compute
    get = "cublasLtMatmulPreferenceGetAttribute"
    assert library.read(get, preference, WORKSPACE, ctypes.c_uint64) == 32 * 2**20
    assert library.read(get, preference, REDUCTIONS, ctypes.c_uint32) == 2


def test_turned_operands_and_a_bias_are_described(library: Without) -> None:
    shape = Shape(1, 2, 3, 4, x_transposed=True, y_transposed=True)
    Gemm(library, lambda nbytes: 0, 0).product(0, 0, 0, shape, "fp32", bias=0x7F00)
    _, operation, a, b, _, d, *_ = library.asked["cublasLtMatmulAlgoGetHeuristic"]
    assert [library.layout(each)[:3] for each in (a, b, d)] == [[4, 3, 4], [2, 4, 2], [3, 2, 3]]
    get = "cublasLtMatmulDescGetAttribute"
    transposes = [library.read(get, operation, attribute, ctypes.c_int32) for attribute in (3, 4)]
    assert transposes == [1, 1]  # CUBLAS_OP_T
    assert library.read(get, operation, 7, ctypes.c_uint32) == 4  # CUBLASLT_EPILOGUE_BIAS
    assert library.read(get, operation, 8, ctypes.c_uint64) == 0x7F00


def test_one_product_is_a_batch_of_one(library: Without) -> None:
    Gemm(library, lambda nbytes: 0, 0).product(0, 0, 0, Shape(1, 2, 3, 4), "fp32")
    _, _, a, *_ = library.asked["cublasLtMatmulAlgoGetHeuristic"]
    assert library.layout(a) == [3, 4, 3, 1, 0]


def test_an_error_of_the_library_is_told_in_its_words(library: Without) -> None:
    assert "not supported" in str(Gemm(library, lambda nbytes: 0, 0)._error("cublasLtMatmul", 15, None))
