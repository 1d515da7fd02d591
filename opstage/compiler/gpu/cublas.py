"""Matrix products by cuBLASLt, called through ctypes.

cuBLASLt is column-major, so it sees a row-major matrix as its transpose. The product out = x·y is thus computed as outᵀ
= yᵀ·xᵀ: the operands are swapped, and nothing is transposed. Constants and layouts are those of cublasLt.h in CUDA 13,
equal in CUDA 11 and 12.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple, final

from ...ops.errors import UnsupportedError, UsageError
from ...ops.types import FLOAT32
from ...options import MatmulPrecision
from .buffer import MatrixLayout

WORKSPACE = 32 << 20
"""Bytes: what NVIDIA recommends for sm_90."""

CUDA_R_32F = 0
COMPUTE_TYPES: dict[MatmulPrecision, int] = {"fp32": 68, "tf32": 77, "bf16": 75}
"""CUBLAS_COMPUTE_32F, _32F_FAST_TF32, _32F_FAST_16BF."""

LAYOUT_BATCH_COUNT, LAYOUT_BATCH_STRIDE = 5, 6
PREFERENCE_MOST_WORKSPACE, PREFERENCE_REDUCTIONS = 1, 3
PREFERENCE_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C and D
MOST_ALIGNED = 256  # bytes: the alignment that the library assumes
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
TRANSPOSED = 1  # CUBLAS_OP_T
WITH_BIAS = 4  # CUBLASLT_EPILOGUE_BIAS: a number per row of a column-major matrix, so per column of ours
REDUCTION_IN_WORKSPACE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums in float32, added in a fixed order


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


VECTOR = 16
"""Bytes that a thread reads at once, and the best alignment of a bias."""

MOST_MATRICES = 65_535
"""The limit per call: the library indexes matrices by a grid axis of this size."""
PART = 1 << 15
"""Matrices per call if there are more; chosen such that all parts have aligned addresses."""

REFUSED = frozenset({7, 8, 15})
"""CUBLAS_STATUS_INVALID_VALUE, _ARCH_MISMATCH and _NOT_SUPPORTED: the request is at fault. Others are GPU errors."""


# The argument types of each function.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, c_void_p),
    # handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm,
    # workspace, its bytes, stream
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


class ProductFailed(RuntimeError):
    """A call of the library failed; the handler queries the driver for the cause."""


class Shape(NamedTuple):
    """out (batch, rows, columns) = x (batch, rows, extent) · y (batch, extent, columns).

    x_transposed, y_transposed   the operand is stored transposed
    x_layout, y_layout   the layout of the operands, if their matrices are not contiguous
    out_layout           the layout of the result
    aligned              the common alignment of all addresses in bytes
    """

    batch: int
    rows: int
    columns: int
    extent: int
    x_transposed: bool = False
    y_transposed: bool = False
    x_layout: MatrixLayout | None = None
    y_layout: MatrixLayout | None = None
    out_layout: MatrixLayout | None = None
    aligned: int = MOST_ALIGNED

    @property
    def x_stored(self) -> MatrixLayout:
        sides = (self.extent, self.rows) if self.x_transposed else (self.rows, self.extent)
        return _stored(self.x_layout, *sides)

    @property
    def y_stored(self) -> MatrixLayout:
        sides = (self.columns, self.extent) if self.y_transposed else (self.extent, self.columns)
        return _stored(self.y_layout, *sides)

    @property
    def out_stored(self) -> MatrixLayout:
        return _stored(self.out_layout, self.rows, self.columns)


def _stored(given: MatrixLayout | None, rows: int, columns: int) -> MatrixLayout:
    """Return the layout of matrices: the given one, or contiguous."""
    return given if given is not None else MatrixLayout(rows, columns, columns, rows * columns)


class GemmPlan(NamedTuple):
    """The cuBLASLt descriptors and algorithm for a product of one shape and precision; created once."""

    operation: Any
    x: Any
    y: Any
    out: Any
    algorithm: Any


def load() -> Any:
    """Load the library. Raises UsageError if it is not found."""
    from cuda import pathfinder

    try:
        path = pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path
    except Exception as error:
        raise UsageError(
            "device 'cuda' multiplies matrices by cuBLASLt, and that library was not found; install it with: "
            "pip install 'opstage[cuda]'"
        ) from error
    return typed(ctypes.CDLL(path))


def typed(library: Any) -> Any:
    """Return the library after declaring the argument types of its functions."""
    for name, types in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    library.cublasLtGetStatusString.argtypes, library.cublasLtGetStatusString.restype = (c_int,), c_char_p
    return library


_SET_OPERATION = "cublasLtMatmulDescSetAttribute"


@final
class Gemm:
    """Matrix products on one stream of the current device.

    workspace   returns the address of device memory of a size; called once
    stream      the CUstream as an integer
    """

    def __init__(self, library: Any, workspace: Callable[[int], int], stream: int):
        self._library = library
        self._stream = stream
        self._plans: dict[tuple[Shape, MatmulPrecision, int], GemmPlan] = {}
        self._workspace = workspace(WORKSPACE)
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))
        self._one, self._zero = c_float(1), c_float(0)
        self._scales = ctypes.addressof(self._one), ctypes.addressof(self._zero)

    def product(
        self, out: int, x: int, y: int, shape: Shape, precision: MatmulPrecision, bias: int | None = None
    ) -> None:
        """Compute out = x·y + bias for row-major float32 matrices at these addresses; returns before it is done.

        Raises UnsupportedError for a request that the library rejects, and ProductFailed.
        """
        if shape.batch <= MOST_MATRICES:
            self._product(out, x, y, shape, precision, bias)
            return
        steps = [each.matrix * FLOAT32.itemsize for each in (shape.out_stored, shape.x_stored, shape.y_stored)]
        for first in range(0, shape.batch, PART):
            out_at, x_at, y_at = (start + first * step for start, step in zip((out, x, y), steps, strict=True))
            part = shape._replace(
                batch=min(PART, shape.batch - first), aligned=min(shape.aligned, alignment(out_at, x_at, y_at))
            )
            self._product(out_at, x_at, y_at, part, precision, bias)

    def _product(self, out: int, x: int, y: int, shape: Shape, precision: MatmulPrecision, bias: int | None) -> None:
        # the algorithm is chosen for the alignment of the first bias, and valid for any with at least that
        key = shape, precision, 0 if bias is None else min(alignment(bias), VECTOR)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(shape, precision, bias)
        if bias is not None:
            self._set(_SET_OPERATION, plan.operation, BIAS_POINTER, c_void_p(bias), shape)
        one, zero = self._scales
        status = self._library.cublasLtMatmul(
            *(self._handle, plan.operation, one, y, plan.y, x, plan.x, zero, out, plan.out, out, plan.out),
            *(plan.algorithm, self._workspace, WORKSPACE, self._stream),
        )
        if status:
            raise self._error("cublasLtMatmul", status, shape)

    def _plan(self, shape: Shape, precision: MatmulPrecision, bias: int | None) -> GemmPlan:
        operation = c_void_p()
        self._call("cublasLtMatmulDescCreate", byref(operation), COMPUTE_TYPES[precision], CUDA_R_32F, shape=shape)
        for attribute, transposed in ((TRANSPOSE_A, shape.y_transposed), (TRANSPOSE_B, shape.x_transposed)):
            if transposed:
                self._set(_SET_OPERATION, operation, attribute, c_int32(TRANSPOSED), shape)
        if bias is not None:  # the heuristic checks its address
            self._set(_SET_OPERATION, operation, EPILOGUE, c_uint32(WITH_BIAS), shape)
            self._set(_SET_OPERATION, operation, BIAS_POINTER, c_void_p(bias), shape)
        y, x, out = (self._layout(stored, shape) for stored in (shape.y_stored, shape.x_stored, shape.out_stored))
        preference = c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", byref(preference), shape=shape)
        set_preference = "cublasLtMatmulPreferenceSetAttribute"
        self._set(set_preference, preference, PREFERENCE_MOST_WORKSPACE, c_uint64(WORKSPACE), shape)
        self._set(set_preference, preference, PREFERENCE_REDUCTIONS, c_uint32(REDUCTION_IN_WORKSPACE), shape)
        for attribute in PREFERENCE_ALIGNMENTS if shape.aligned < MOST_ALIGNED else ():
            self._set(set_preference, preference, attribute, c_uint32(shape.aligned), shape)
        best, found = Heuristic(), c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, operation, y, x, out, out, preference, 1, byref(best), byref(found)),
            shape=shape,
        )
        if not found.value or best.state:
            raise UnsupportedError(
                f"{_show(shape)} with matmul_precision={precision!r} is not supported by this version of cuBLASLt; use "
                "another matmul_precision"
            )
        return GemmPlan(operation, x, y, out, byref(best.algorithm))

    def _layout(self, stored: MatrixLayout, shape: Shape) -> Any:
        """Create the layout of column-major matrices, whose columns are our rows."""
        layout, sizes = c_void_p(), (stored.columns, stored.rows, stored.row)
        self._call("cublasLtMatrixLayoutCreate", byref(layout), CUDA_R_32F, *sizes, shape=shape)
        if shape.batch > 1:
            set_layout = "cublasLtMatrixLayoutSetAttribute"
            self._set(set_layout, layout, LAYOUT_BATCH_COUNT, c_int32(shape.batch), shape)
            self._set(set_layout, layout, LAYOUT_BATCH_STRIDE, c_int64(stored.matrix), shape)
        return layout

    def _set(self, name: str, target: Any, attribute: int, value: Any, shape: Shape) -> None:
        self._call(name, target, attribute, byref(value), ctypes.sizeof(value), shape=shape)

    def _call(self, name: str, *arguments: Any, shape: Shape | None = None) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise self._error(name, status, shape)

    def _error(self, name: str, status: int, shape: Shape | None) -> Exception:
        said = self._library.cublasLtGetStatusString(status).decode()
        kind = UnsupportedError if status in REFUSED else ProductFailed
        return kind(f"{name} failed{f' for {_show(shape)}' if shape else ''}: {said} (status {status})")


def alignment(*addresses: int) -> int:
    """Return the largest power of two, up to the alignment that the library assumes, that divides all addresses."""
    together = MOST_ALIGNED
    for address in addresses:
        together |= address
    return together & -together


def _show(shape: Shape) -> str:
    batch, rows, columns, extent, *_ = shape
    return f"{f'{batch} products' if batch > 1 else 'a product'} of ({rows}, {extent}) and ({extent}, {columns})"
