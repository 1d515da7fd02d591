"""The memory that a kernel takes, counted by running the kernel itself on arrays without elements.

A kernel's function is copied with other globals: NumPy creates phantoms (`phantom`, `functions`), machine code does
nothing, and queries for elements, addresses or valid indices return the answers of an ordinary run. Callees are copied
the same way. So memory is allocated and freed by the same lines as in a run, without affecting concurrent runs.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....compiler import native
from ....compiler.codegen.cpu.kernels import FusedLoops, fused
from ....compiler.native import blas_matmul
from ....ops import host_arrays as host
from ....ops import index_checks as indices
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from .. import memory as workspace
from ..kernels import attention, convolution
from ..loops import arrays as jit
from ..loops import convolution_steps, pooling
from .functions import MAKERS, strided
from .phantom import Count, CountedMemory, Phantom, Sizes, current

# Kernels without arithmetic -------------------------------------------------------------------------------------------

_OPSTAGE = __name__.split(".")[0]


class _Numpy:
    """NumPy with phantoms as new arrays."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(np, name)
        return MAKERS.get(real, real)


def _nothing(*args: Any, **options: Any) -> int:
    return 0


class _Idle:
    """A schedule that does nothing."""

    def __init__(self, steps: Any):
        pass

    def run(self) -> None:
        pass


def _workspace(size: int) -> workspace.Workspace:
    current.count.kept = max(current.count.kept, size + workspace.ALIGNED)
    return workspace.Workspace(0, np.empty(0, np.uint8))


def _runs(*args: Any) -> list[slice]:
    """Return two runs of equal length, where the second allocates while the first is still alive, and the last."""
    every = convolution._runs(*args)
    return every if len(every) < 4 else [*every[:2], every[-1]]


def _blocks(*args: Any) -> Iterator[attention.ScoreTile]:
    """Yield two blocks of each shape: others need no more memory."""
    seen: Counter[Any] = Counter()
    for block in attention.blocks(*args):
        seen[block.shape] += 1
        if seen[block.shape] < 3:
            yield block


def _fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Callable[..., Any] | None:
    kernel = fused(primitive, types, static)
    return None if kernel is None else partial(results_of, kernel)


def results_of(kernel: Callable[..., Any], /, *operands: Any, **static: Any) -> Any:
    """Run a kernel on phantoms; return its results."""
    if isinstance(kernel, FusedLoops):
        return twin(FusedLoops.memory)(kernel, *operands)[0]
    return twin(kernel)(*operands, **static)


_INSTEAD: tuple[tuple[Any, Any], ...] = (
    (np, _Numpy()),
    (as_strided, strided),
    (native.KernelSequence, _Idle),
    (fused, _fused),
    (convolution_steps.convolution_steps, _nothing),
    (pooling.pool_step, _nothing),
    (blas_matmul._product, lambda character: None),  # its result is like that of np.matmul
    (host.address_of, _nothing),
    (host.find_owner, attrgetter("memory")),
    (indices.require_in_range, _nothing),
    (indices.require_cells, _nothing),
    (workspace.workspace, _workspace),
    (attention.blocks, _blocks),
    (convolution._runs, _runs),
)
_BY_ID = {id(value): instead for value, instead in _INSTEAD}
_twins: dict[int, tuple[Any, Any]] = {}  # by id of the original, which is kept alive


def twin(value: Any) -> Any:
    """Return `value` with replaced globals, so that nothing is computed."""
    if id(value) in _BY_ID:
        return _BY_ID[id(value)]
    if not isinstance(value, (FunctionType, ModuleType, partial, jit.JitLoop, jit.Elementwise)):
        return value
    found = _twins.get(id(value))
    if found is None:
        found = _twins[id(value)] = value, _make_twin(value)
    return found[1]


def _make_twin(value: Any) -> Any:
    if isinstance(value, jit.JitLoop):
        return _nothing
    if isinstance(value, jit.Elementwise):
        return _elementwise
    if isinstance(value, partial):
        return partial(twin(value.func), *map(twin, value.args), **{k: twin(v) for k, v in value.keywords.items()})
    if isinstance(value, ModuleType):
        return _Module(value) if value.__name__.startswith(_OPSTAGE) else value
    return _function(value) if (value.__module__ or "").startswith(_OPSTAGE) else value


def _elementwise(*operands: Any) -> Any:
    """Stand for a ufunc of one or two arrays of one dtype, or of two behind a mask."""
    ufunc: Any = (np.negative, np.maximum, np.where)[len(operands) - 1]
    return ufunc(*operands)


def _function(function: FunctionType) -> Callable[..., Any]:
    cells = tuple([CellType(twin(cell.cell_contents)) for cell in function.__closure__ or ()])
    defaults = tuple(map(twin, function.__defaults__ or ()))
    made = FunctionType(function.__code__, _globals_of(function), function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: twin(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return made


@final
class _TwinGlobals(dict[str, Any]):
    """The globals of a module, with computing functions replaced by twins, made on first lookup."""

    __slots__ = ("_real",)

    def __init__(self, real: Mapping[str, Any]):
        super().__init__()
        self._real = real

    def __missing__(self, name: str) -> Any:
        if name not in self._real:
            value = self[name] = getattr(builtins, name)
            return value
        real = self._real[name]
        value = twin(real)
        if value is not real:  # unchanged values are looked up each time, since they may change
            self[name] = value
        return value


_globals: dict[int, _TwinGlobals] = {}


def _globals_of(function: FunctionType) -> _TwinGlobals:
    real = function.__globals__
    if id(real) not in _globals:
        _globals[id(real)] = _TwinGlobals(real)
    return _globals[id(real)]


class _Module:
    """A module of Opstage with twins of its attributes."""

    def __init__(self, real: ModuleType):
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return twin(getattr(self._real, name))


# The memory of a call -------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """A result of a kernel.

    of       the owner of its memory: the number of an operand or, counted after these, of an earlier result; None for
             its own
    nbytes   of its own memory
    strides  in bytes; None if row-major
    """

    type: TensorType
    of: int | None
    nbytes: int
    strides: Sizes | None


class KernelMemory(NamedTuple):
    """The memory of one call of a kernel.

    results     outputs, then residuals
    temporary   bytes allocated in addition to the operands and all results, block by block, at the peak; freed before
                the call returns. Results not yet allocated count as negative.
    kept        bytes of workspace kept between calls, the maximum over calls
    """

    results: tuple[Result, ...]
    temporary: tuple[int, ...]
    kept: int

    @property
    def workspace(self) -> int:
        """Return the bytes in addition to the operands and the results."""
        return sum(self.temporary) + self.kept


def kernel_memory(
    kernel: Callable[..., Any], types: Sequence[TensorType], strides: Sequence[Sizes | None], static: Static
) -> KernelMemory:
    """Return the memory of `kernel` for operands of these concrete types and strides. Nothing is computed."""
    current.count = Count()
    memory: list[CountedMemory] = [CountedMemory(0, current.count) for _ in types]
    shapes: Any = [type_.shape for type_ in types]
    phantoms = [Phantom.on(m, shape, s, t.dtype) for m, shape, s, t in zip(memory, shapes, strides, types)]
    current.count = count = Count()
    outs = results_of(kernel, *phantoms, **static)
    results = []
    for out in outs if isinstance(outs, tuple) else (outs,):
        array = out if isinstance(out, Phantom) else MAKERS[np.array](out)
        of = next((i for i, m in enumerate(memory) if m is array.memory), None)
        memory.append(array.memory)
        strides_ = None if array.flags.c_contiguous else array.strides
        nbytes = array.memory.nbytes if of is None else 0
        results.append(Result(TensorType(array.shape, array.dtype), of, nbytes, strides_))
    own = {m.number: m.nbytes for m, result in zip(memory[len(types) :], results) if result.of is None}
    if count.peak == sum(own.values()):
        return KernelMemory(tuple(results), (), count.kept)
    temporary = [nbytes for number, nbytes in count.at_peak.items() if number not in own]
    missing = [-nbytes for number, nbytes in own.items() if number not in count.at_peak]
    return KernelMemory(tuple(results), (*temporary, *missing), count.kept)


# The memory that a kernel takes, counted by running the kernel itself on arrays without elements ----------------------

__all__ = ["KernelMemory", "Result", "Sizes", "kernel_memory"]
