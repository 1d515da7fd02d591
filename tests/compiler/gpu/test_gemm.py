"""Calls of cuBLASLt against a stand-in that reads what it is given as cublasLt.h says, and computes with NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu import cublas as gemm
from opstage.compiler.gpu.buffer import MatrixLayout
from opstage.compiler.gpu.cublas import SIGNATURES, Algorithm, Gemm, Heuristic, Shape, alignment
from opstage.ops.errors import UnsupportedError

# As in the headers of CUDA 13: cublasLt.h, cublas_api.h, library_types.h.
CUDA_R_32F = 0
CUBLAS_COMPUTE_32F = 68
CUBLAS_COMPUTE_32F_FAST_16BF = 75
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5
CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)  # ..._A_BYTES, B, C, D
CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
CUBLASLT_MATMUL_DESC_TRANSA = 3
CUBLASLT_MATMUL_DESC_TRANSB = 4
CUBLASLT_MATMUL_DESC_EPILOGUE = 7
CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8
CUBLAS_OP_T = 1
CUBLASLT_EPILOGUE_BIAS = 4
CUBLAS_STATUS_INVALID_VALUE = 7
CUBLAS_STATUS_NOT_SUPPORTED = 15


class Library:
    """cuBLASLt on arrays of the host: opaque things are numbers by which it finds what it was told of them."""

    def __init__(self) -> None:
        self.things: list[dict[Any, Any]] = [{}]
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.found = 1
        self.workspaces: list[tuple[int, int]] = []
        self.streams: list[int] = []
        self.aligned: list[set[int]] = []
        self.leading: list[int] = []
        self.batches: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if not name.startswith("cublasLt") or name == "cublasLtGetStatusString":
            return value

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            assert len(arguments) == len(SIGNATURES[name])
            return self.fails.get(name) or value(*arguments) or 0

        return call

    def new(self, pointer: Any, **told: Any) -> None:
        pointer._obj.value = len(self.things)
        self.things.append(told)

    def of(self, thing: Any) -> dict[Any, Any]:
        return self.things[thing.value]

    def cublasLtCreate(self, handle: Any) -> None:  # noqa: N802
        self.new(handle)

    def cublasLtMatmulDescCreate(self, operation: Any, compute: int, scale: int) -> None:  # noqa: N802
        assert scale == CUDA_R_32F
        self.new(operation, compute=compute)

    def cublasLtMatmulDescSetAttribute(self, operation: Any, attribute: int, value: Any, size: int) -> None:  # noqa: N802
        kinds: dict[int, Any] = {
            CUBLASLT_MATMUL_DESC_TRANSA: ctypes.c_int32,
            CUBLASLT_MATMUL_DESC_TRANSB: ctypes.c_int32,
            CUBLASLT_MATMUL_DESC_EPILOGUE: ctypes.c_uint32,
            CUBLASLT_MATMUL_DESC_BIAS_POINTER: ctypes.c_uint64,
        }
        assert size == ctypes.sizeof(kinds[attribute])
        self.of(operation)[attribute] = ctypes.cast(value, ctypes.POINTER(kinds[attribute]))[0]

    def cublasLtMatrixLayoutCreate(  # noqa: N802
        self, layout: Any, type: int, rows: int, columns: int, leading: int
    ) -> None:
        assert type == CUDA_R_32F
        self.new(layout, rows=rows, columns=columns, leading=leading)

    def cublasLtMatrixLayoutSetAttribute(self, layout: Any, attribute: int, value: Any, size: int) -> None:  # noqa: N802
        kinds = {
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: ("count", ctypes.c_int32),
            CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: ("step", ctypes.c_int64),
        }
        name, kind = kinds[attribute]
        assert size == ctypes.sizeof(kind)
        self.of(layout)[name] = ctypes.cast(value, ctypes.POINTER(kind))[0]

    def cublasLtMatmulPreferenceCreate(self, preference: Any) -> None:  # noqa: N802
        self.new(preference)

    def cublasLtMatmulPreferenceSetAttribute(  # noqa: N802
        self, preference: Any, attribute: int, value: Any, size: int
    ) -> None:
        kinds: dict[int, Any] = {
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: ctypes.c_uint32,
            **dict.fromkeys(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENTS, ctypes.c_uint32),
        }
        assert size == ctypes.sizeof(kinds[attribute])
        self.of(preference)[attribute] = ctypes.cast(value, ctypes.POINTER(kinds[attribute]))[0]

    def cublasLtMatmulAlgoGetHeuristic(  # noqa: N802
        self,
        handle: Any,
        operation: Any,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        preference: Any,
        n: int,
        best: Any,
        found: Any,
    ) -> None:
        assert n == 1 and c is d
        told = dict(self.of(preference))
        self.aligned.append({told.pop(each, 256) for each in CUBLASLT_MATMUL_PREF_MIN_ALIGNMENTS})
        assert told == {
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: 32 * 2**20,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
        }
        turned = [self.of(operation).get(way) for way in (CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB)]
        left, right = "rows" if turned[0] == CUBLAS_OP_T else "columns", "columns" if turned[1] else "rows"
        assert self.of(a)[left] == self.of(b)[right]
        # an algorithm for a bias adds vectors as wide as the address allows that it was shown, four numbers if none was
        biased = self.of(operation).get(CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BIAS
        shown = self.of(operation).get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0)
        best._obj.algorithm.data[1] = min(alignment(shown), 16) if biased else 1
        best._obj.algorithm.data[0] = 1000 + self.of(operation)["compute"]
        found._obj.value = self.found

    def cublasLtMatmul(  # noqa: N802
        self,
        handle: Any,
        operation: Any,
        alpha: int,
        a: int,
        a_layout: Any,
        b: int,
        b_layout: Any,
        beta: int,
        c: int,
        c_layout: Any,
        d: int,
        d_layout: Any,
        algorithm: Any,
        workspace: int,
        nbytes: int,
        stream: int,
    ) -> None:
        assert algorithm._obj.data[0] == 1000 + self.of(operation)["compute"]
        assert (ctypes.c_float.from_address(alpha).value, ctypes.c_float.from_address(beta).value) == (1, 0)
        assert c == d and c_layout is d_layout
        self.leading.append(self.of(d_layout)["leading"])
        self.batches.append(self.of(d_layout).get("count", 1))
        assert self.batches[-1] <= 65535, "more matrices than the grid of a GPU has room for"
        assert self.of(operation).get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0) % algorithm._obj.data[1] == 0, "misaligned"
        self.workspaces.append((workspace, nbytes))
        self.streams.append(stream)
        told = self.of(operation)
        left, right = matrix(a, self.of(a_layout)), matrix(b, self.of(b_layout))
        if told.get(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T:
            left = left.swapaxes(1, 2)
        if told.get(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T:
            right = right.swapaxes(1, 2)
        with np.errstate(all="ignore"):  # of what nobody has written
            result = left @ right
        if told.get(CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BIAS:
            address = told[CUBLASLT_MATMUL_DESC_BIAS_POINTER]
            bias = (ctypes.c_float * result.shape[1]).from_address(address)
            result = result + np.ctypeslib.as_array(bias)[:, None]
        matrix(d, self.of(d_layout))[:] = result

    def cublasLtGetStatusString(self, status: int) -> bytes:  # noqa: N802
        return {7: b"invalid value", 13: b"launch failed", 14: b"internal error", 15: b"not supported"}[status]


def matrix(address: int, told: dict[str, int]) -> Any:
    """Column-major matrices, (count, rows, columns)."""
    count, step = told.get("count", 1), told.get("step", 0)
    rows, columns, leading = told["rows"], told["columns"], told["leading"]
    flat = np.ctypeslib.as_array((ctypes.c_float * (count * max(step, leading * columns))).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, (count, rows, columns), (4 * step, 4, 4 * leading))


def gemm_of(library: Library) -> Gemm:
    return Gemm(library, lambda nbytes: 4096 + nbytes, 77)


@pytest.mark.parametrize("shape", [Shape(1, 2, 3, 4), Shape(1, 1, 5, 1), Shape(3, 4, 2, 5), Shape(2, 1, 1, 7)])
def test_row_major_products_are_those_of_numpy(shape: Shape) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape.batch, shape.rows, shape.extent)).astype(np.float32)
    y = rng.standard_normal((shape.batch, shape.extent, shape.columns)).astype(np.float32)
    out = np.zeros((shape.batch, shape.rows, shape.columns), np.float32)
    library = Library()
    gemm_of(library).product(out.ctypes.data, x.ctypes.data, y.ctypes.data, shape, "fp32")
    np.testing.assert_allclose(out, x @ y, rtol=1e-5, atol=1e-6)
    assert library.workspaces == [(4096 + 32 * 2**20, 32 * 2**20)]
    assert library.streams == [77]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("x_transposed", "y_transposed"), [(True, False), (False, True), (True, True)])
def test_transposed_operands_are_read_as_they_lie(batch: int, x_transposed: bool, y_transposed: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, 2, 5)).astype(np.float32)
    y = rng.standard_normal((batch, 5, 3)).astype(np.float32)
    lies = [np.ascontiguousarray(a.swapaxes(1, 2)) if t else a for a, t in ((x, x_transposed), (y, y_transposed))]
    out = np.zeros((batch, 2, 3), np.float32)
    shape = Shape(batch, 2, 3, 5, x_transposed, y_transposed)
    gemm_of(Library()).product(out.ctypes.data, lies[0].ctypes.data, lies[1].ctypes.data, shape, "fp32")
    np.testing.assert_allclose(out, x @ y, rtol=1e-5, atol=1e-6)


def test_operands_may_lie_in_strides() -> None:
    """Heads side by side in one row of memory, transposed or not, and one matrix for a whole stack."""
    rng = np.random.default_rng(2)
    memory = rng.standard_normal((4, 3, 5)).astype(np.float32)  # (n, heads, d)
    q, k = memory.swapaxes(0, 1), rng.standard_normal((6, 5)).astype(np.float32)
    out = np.zeros((3, 4, 6), np.float32)
    shape = Shape(3, 4, 6, 5, y_transposed=True, x_layout=MatrixLayout(4, 5, 15, 5), y_layout=MatrixLayout(6, 5, 5, 0))
    gemm_of(Library()).product(out.ctypes.data, memory.ctypes.data, k.ctypes.data, shape, "fp32")
    np.testing.assert_allclose(out, q @ k.T, rtol=1e-5, atol=1e-6)


def test_the_library_is_told_of_addresses_that_are_less_aligned_than_it_takes_for_granted() -> None:
    assert [alignment(0), alignment(512, 768), alignment(256, 4), alignment(0x1010, 0x2000)] == [256, 256, 4, 16]
    x = np.ones((2, 2), np.float32)
    library = Library()
    gemm = gemm_of(library)
    for aligned in (256, 16):
        gemm.product(x.ctypes.data, x.ctypes.data, x.ctypes.data, Shape(1, 2, 2, 2, aligned=aligned), "fp32")
    assert library.aligned == [{256}, {16}]


def test_a_bias_is_added_to_every_row() -> None:
    """One plan serves every bias, and another one the product without."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((4, 5)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32)
    library = Library()
    product, out = gemm_of(library), np.zeros((4, 3), np.float32)
    for bias in (np.arange(3, dtype=np.float32), np.ones(3, np.float32), None):
        address = None if bias is None else bias.ctypes.data
        product.product(out.ctypes.data, x.ctypes.data, y.ctypes.data, Shape(1, 4, 3, 5), "fp32", address)
        np.testing.assert_allclose(out, x @ y + (0 if bias is None else bias), rtol=1e-5, atol=1e-6)
    assert library.calls.count("cublasLtMatmulDescCreate") == 2


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 8), (4, 0), (1, 2, 0, 4), (2, 1), (3,)])
def test_a_bias_may_stand_at_any_number(order: tuple[int, ...]) -> None:
    """Slices of one memory, which is aligned to 256 bytes; whichever comes first, none is read as if aligned."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((4, 5)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32)
    memory = np.empty(128, np.float32)
    start = -memory.ctypes.data // 4 % 64
    memory[:] = rng.standard_normal(128)
    library = Library()
    product, out = gemm_of(library), np.zeros((4, 3), np.float32)
    for first in (*order, *order):
        bias = memory[start + first : start + first + 3]
        product.product(out.ctypes.data, x.ctypes.data, y.ctypes.data, Shape(1, 4, 3, 5), "fp32", bias.ctypes.data)
        np.testing.assert_allclose(out, x @ y + bias, rtol=1e-5, atol=1e-6)
    kinds = {min(alignment(4 * first), 16) for first in order}
    assert library.calls.count("cublasLtMatmulAlgoGetHeuristic") == len(kinds)


@pytest.mark.parametrize("batch", [65_535, 65_536, 98_304, 131_071])
@pytest.mark.parametrize("same", ["", "x", "y"])
def test_more_matrices_than_one_call_takes_are_given_in_parts(batch: int, same: str) -> None:
    rng = np.random.default_rng(batch)
    x, y = (rng.standard_normal((1 if same == name else batch, 1, 1)).astype(np.float32) for name in "xy")
    out = np.zeros((batch, 1, 1), np.float32)
    layouts = {f"{same}_layout": MatrixLayout(1, 1, 1, 0)} if same else {}
    library = Library()
    shape = Shape(batch, 1, 1, 1, **layouts)  # type: ignore[arg-type]
    gemm_of(library).product(out.ctypes.data, x.ctypes.data, y.ctypes.data, shape, "fp32")
    np.testing.assert_array_equal(out, x * y)
    assert sum(library.batches) == batch and (len(library.batches) > 1) == (batch > 65_535)


def test_parts_of_a_batch_are_as_aligned_as_their_addresses() -> None:
    library, batch = Library(), 65_536
    x, out = np.ones((batch, 1, 3), np.float32), np.zeros((batch, 1, 1), np.float32)
    memory = np.ones(batch * 3 + 64, np.float32)
    y = memory[-memory.ctypes.data // 4 % 64 :][: batch * 3]
    gemm_of(library).product(out.ctypes.data, x.ctypes.data, y.ctypes.data, Shape(batch, 1, 1, 3, aligned=16), "fp32")
    assert all(told <= {4, 8, 16} for told in library.aligned)
    np.testing.assert_array_equal(out, np.full_like(out, 3))


def test_rows_of_the_result_may_lie_apart() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 3, 5)).astype(np.float32), rng.standard_normal((2, 5, 6)).astype(np.float32)
    out = np.full((2, 3, 8), np.nan, np.float32)
    shape = Shape(2, 3, 6, 5, out_layout=MatrixLayout(3, 6, 8, 24))
    gemm_of(Library()).product(out.ctypes.data, x.ctypes.data, y.ctypes.data, shape, "fp32")
    np.testing.assert_allclose(out[..., :6], x @ y, rtol=1e-5, atol=1e-6)
    assert np.isnan(out[..., 6:]).all()


def test_a_plan_is_made_once_for_a_shape_and_a_precision() -> None:
    library = Library()
    x, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    product = gemm_of(library)
    for _ in range(3):
        product.product(out.ctypes.data, x.ctypes.data, x.ctypes.data, Shape(1, 4, 4, 4), "fp32")
    assert library.calls == [
        "cublasLtCreate",
        "cublasLtMatmulDescCreate",
        *["cublasLtMatrixLayoutCreate"] * 3,
        "cublasLtMatmulPreferenceCreate",
        *["cublasLtMatmulPreferenceSetAttribute"] * 2,
        "cublasLtMatmulAlgoGetHeuristic",
        *["cublasLtMatmul"] * 3,
    ]
    compute = {}
    for precision in ("fp32", "tf32", "bf16"):
        product.product(out.ctypes.data, x.ctypes.data, x.ctypes.data, Shape(1, 4, 4, 4), precision)
        compute[precision] = [told["compute"] for told in library.things if "compute" in told][-1]
    assert compute == {
        "fp32": CUBLAS_COMPUTE_32F,
        "tf32": CUBLAS_COMPUTE_32F_FAST_TF32,
        "bf16": CUBLAS_COMPUTE_32F_FAST_16BF,
    }


def test_structs_lie_as_in_the_header() -> None:
    """uint64_t data[8]; then size_t, an enum (4 bytes), float, int[4]."""
    assert ctypes.sizeof(Algorithm) == 64
    assert {name: getattr(Heuristic, name).offset for name, *_ in Heuristic._fields_} == {
        "algorithm": 0,
        "workspace": 64,
        "state": 72,
        "waves": 76,
        "reserved": 80,
    }
    assert ctypes.sizeof(Heuristic) == 96


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("cublasLtCreate", 7, r"cublasLtCreate failed: invalid value \(status 7\)"),
        ("cublasLtMatrixLayoutCreate", 7, r"Create failed for a product of \(2, 4\) and \(4, 3\): invalid value"),
        ("cublasLtMatmul", 15, r"cublasLtMatmul failed for a product of \(2, 4\) and \(4, 3\): not supported"),
    ],
)
def test_what_fails_is_named(name: str, status: int, said: str) -> None:
    library = Library()
    library.fails[name] = status
    with pytest.raises(UnsupportedError, match=said):
        gemm_of(library).product(0, 0, 0, Shape(1, 2, 3, 4), "fp32")


def test_a_shape_without_an_algorithm_is_an_error() -> None:
    library = Library()
    library.found = 0
    with pytest.raises(UnsupportedError, match=r"5 products of \(2, 4\) and \(4, 3\).*'tf32' is not supported"):
        gemm_of(library).product(0, 0, 0, Shape(5, 2, 3, 4), "tf32")


def test_every_function_has_the_number_of_arguments_of_the_header() -> None:
    assert {name: len(types) for name, types in gemm.SIGNATURES.items()} == {
        "cublasLtCreate": 1,
        "cublasLtMatmulDescCreate": 3,
        "cublasLtMatmulDescSetAttribute": 4,
        "cublasLtMatrixLayoutCreate": 5,
        "cublasLtMatrixLayoutSetAttribute": 4,
        "cublasLtMatmulPreferenceCreate": 1,
        "cublasLtMatmulPreferenceSetAttribute": 4,
        "cublasLtMatmulAlgoGetHeuristic": 10,
        "cublasLtMatmul": 16,
    }
