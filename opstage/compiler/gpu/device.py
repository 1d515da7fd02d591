"""The interface of a device: memory, copies, kernel launches, and exclusive use.

A device is used by one thread at a time, and only in the process that opened it. It has one stream, one pinned buffer,
one set of matmul plans, and one current op. So every method that uses them holds the device's lock from its first to
its last driver call. An interpreter holds it for a whole op, and a compiled program for a whole run, so that state set
before a launch belongs to that launch and a capture contains no other work. The lock is reentrant.

Garbage may be collected in any thread at any time, so a finalizer never waits for the lock."""

from __future__ import annotations

import gc
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar, cast, final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ...ops.errors import DeviceError, LocatedError, OutOfMemoryError, ProgramError, user_frame
from ...ops.index_checks import require_in_range
from ...ops.types import DType, TensorType
from ...options import CudaGraphs
from ...threads import tell_in_child
from .buffer import Aside, DeviceBuffer, MatrixLayout, Memory, Patience
from .launches import Call, DeferredLaunch, DeferredLaunches, OpContext, Require, Script, Watch, Watched, range_error
from .machine import inherited

# Exclusive use --------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

_inherited = False  # whether a device was in use when this process was forked


def alone(method: F) -> F:
    """Decorate a method of a device to hold its lock."""

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


@final
class Inherited:
    """The lock of a device in a process forked from the one that opened it: acquiring it raises."""

    def __enter__(self) -> NoReturn:
        raise _fork_error()

    def __exit__(self, *_: object) -> None:
        """Do nothing: the lock is never acquired."""


Lock: TypeAlias = AbstractContextManager[object]


def register_owner(device: Device) -> None:
    """Mark a device as owned by this process; using it in a forked child raises."""
    tell_in_child(device, _inherit)


def _inherit(device: Device) -> None:
    global _inherited
    _inherited, device.lock = True, Inherited()


def require_own_process() -> None:
    """Raise DeviceError in a process forked from one that used CUDA."""
    if _inherited or inherited():
        raise _fork_error()


def _fork_error() -> DeviceError:
    return DeviceError(
        "CUDA is not supported in a process forked from one that uses it: this process can neither read nor compute "
        "tensors of the GPU. Start processes that use a GPU with multiprocessing.get_context('spawn'), or fork before "
        "the first use of device 'cuda'",
        lost=True,
    )


# Launch sizes ---------------------------------------------------------------------------------------------------------

WARP = 32


class Grid(NamedTuple):
    """Launch sizes for a device.

    threads        threads of a block in kernels that stride over elements
    block          threads of a block that processes a single item
    shortest       minimal row length for a warp per row; shorter rows use one thread
    longest        maximal row length for a warp per row; longer rows use a block
    most_blocks    maximal number of blocks of a kernel that strides over its items
    """

    threads: int = 256
    block: int = 256
    shortest: int = WARP
    longest: int = 1024
    most_blocks: int = 2**31 - 1

    def each(self, count: int) -> tuple[int, int]:
        """Return (blocks, threads) for `count` elements."""
        return min(-(-count // self.threads), self.most_blocks), self.threads

    def each_row(self, rows: int, extent: int) -> tuple[int, int, int]:
        """Return (blocks, threads, lanes) for `rows` rows of `extent` numbers, with `lanes` threads on each row."""
        lanes = 1 if extent < self.shortest else WARP if extent <= self.longest else self.block
        threads = max(lanes, self.threads)
        return min(-(-rows * lanes // threads), self.most_blocks), threads, lanes

    def part(self, count: int) -> int:
        """Return the elements per row of `count` elements in total: one per lane of a warp, or more to limit the
        blocks."""
        steps = -(-count // (self.most_blocks * self.threads))
        return WARP * min(steps, self.longest // WARP)


GRID = Grid()


# The device -----------------------------------------------------------------------------------------------------------

_MOST_NUMBERS = 4096


T = TypeVar("T")


class Idle(Protocol):
    """Holds memory between runs."""

    def empty_cache(self) -> None:
        """Free that memory, unless a run is in progress."""
        ...


class Device(ABC):
    """One GPU and one stream: its calls take effect in their order.

    number          which of the process's GPUs it is
    lock            the lock that every call acquires; see `alone`
    peak            the maximum of bytes in use
    context         the op of the last call, to which later errors belong
    grid            the numbers of blocks and threads of launches
    computes        whether results are computed; a device that only counts memory returns zeros
    notes           whether calls are only recorded, to run later
    patience        watches waits for work that may never end; None to wait without a limit
    """

    computes = True
    notes = False
    patience: Patience | None = None

    def __init__(self, grid: Grid = GRID, number: int = 0) -> None:
        self.number = number
        self.lock: Lock = threading.RLock()
        self.peak = 0
        self.context = OpContext("", "", "fp32", Watch())
        self.grid = grid
        self._used = 0
        self._returned: deque[tuple[Any, int]] = deque()
        self._numbers: dict[tuple[int, ...], DeviceBuffer] = {}
        self._deferred = DeferredLaunches(self)
        self._idle: WeakSet[Idle] = WeakSet()

    def __str__(self) -> str:
        return f"cuda:{self.number}"

    @property
    def identity(self) -> str:
        """Return a name of the GPU, equal exactly for processes of a machine that use it."""
        return str(self)

    def enter(self) -> None:  # noqa: B027  one that no driver knows has nothing to say to it
        """Have calls of the driver in this thread mean this device, those of other libraries too."""

    def holds(self, buffer: DeviceBuffer) -> bool:
        """Return whether work of this device may read a buffer."""
        return buffer.memory.device is self

    def serve(self, context: OpContext, work: Callable[..., T], /, *args: Any, **more: Any) -> T:
        """Return `work(*args, **more)`, attributing its launches and errors to this op. The caller must hold the
        lock."""
        self.context = context
        try:
            return work(*args, **more)
        except LocatedError as error:
            error.place(context.op, context.region)
            raise

    # Memory ---------------------------------------------------------------------------------------------------------

    def empty(self, type: TensorType) -> DeviceBuffer:
        """Return an uninitialised buffer of this type."""
        shape: Any = type.shape
        return DeviceBuffer(type, self.memory(math.prod(shape) * type.dtype.itemsize))

    def memory(self, nbytes: int) -> Memory:
        """Allocate `nbytes` on the device. Raises OutOfMemoryError if that fails, even after a `shrink`."""
        with self.lock:  # as `alone`, which would take a fifth of the time
            if self._returned:
                self._take_back()
            try:
                handle = self.allocate(nbytes)
            except OutOfMemoryError:
                self.shrink()
                handle = self.allocate(nbytes)
            memory = Memory(self, handle, nbytes)
            self._used = used = self._used + nbytes
            if used > self.peak:
                self.peak = used
            return memory

    def release(self, handle: Any, nbytes: int) -> None:
        """Queue memory for reuse; called once by each `Memory`, in any thread that collects it as garbage, and so
        without the lock. It is reused by the next allocation."""
        self._returned.append((handle, nbytes))

    @property
    def used(self) -> int:
        """Return the bytes in use now."""
        with self.lock:
            self._take_back()
            return self._used

    def _take_back(self) -> None:
        """Make released memory available for the next allocation."""
        while self._returned:
            handle, nbytes = self._returned.popleft()
            self._used -= nbytes
            self.deallocate(handle, nbytes)

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Allocate `nbytes` and return a handle. Raises OutOfMemoryError."""

    @abstractmethod
    def deallocate(self, handle: Any, nbytes: int) -> None:
        """Free a handle; work launched earlier may still use its bytes."""

    @abstractmethod
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        """Return a handle of a part of a memory, which keeps owning it."""

    @abstractmethod
    def empty_cache(self) -> int:
        """Free memory that is kept for reuse; return its size in bytes."""

    @alone
    def add_idle(self, who: Idle) -> None:
        """Register an object for `shrink` to empty; it is held weakly."""
        self._idle.add(who)

    @alone
    def shrink(self) -> int:
        """Free idle memory and garbage cycles, drop uploaded constants, then `empty_cache`."""
        with suppress(OutOfMemoryError):  # deferred launches stay deferred if there is no memory for them either
            self.flush()
        for each in list(self._idle):
            each.empty_cache()
        gc.collect()
        self._numbers.clear()
        return self.empty_cache()

    # Copies ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        """Return a buffer with the elements of a host array, which may be changed after this returns."""

    @abstractmethod
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        """Return a host array that the caller owns, after waiting for all earlier work."""

    @alone
    def numbers(self, *values: int) -> DeviceBuffer:
        """Return these numbers as int32 on the device, such as sizes and strides of a window; uploaded once and
        cached."""
        found = self._numbers.get(values)
        if found is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            found = self._numbers[values] = self.upload(np.array(values or (0,), np.int32))
        return found

    # Kernels --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        """Launch a kernel. Buffers are passed as pointers, tuples of buffers of one dtype as a pointer to pointers, and
        NumPy numbers by value.

        Raises OpstageError with the kernel's name, if it does not compile.
        """

    def each(self, kernel: Callable[..., None], count: int, *arguments: Any) -> None:
        """Launch `kernel(count, *arguments)`, which strides over `count` elements by the size of the grid."""
        if count:
            self.launch(kernel, *self.grid.each(count), np.int32(count), *arguments)

    @property
    def block(self) -> int:
        """Return the number of threads of a block that processes a single item."""
        return self.grid.block

    def each_row(self, kernel: Callable[..., None], rows: int, extent: int, *arguments: Any) -> None:
        """Launch `kernel(rows, lanes, *arguments)`, which strides over `rows` rows of `extent` numbers with `lanes`
        threads per row: one thread for short rows, a warp, or a whole block."""
        if rows:
            blocks, threads, lanes = self.grid.each_row(rows, extent)
            self.launch(kernel, blocks, threads, np.int32(rows), np.int32(lanes), *arguments)

    def each_tensor(
        self, kernel: Callable[..., None], tensors: Sequence[tuple[DeviceBuffer, ...]], *arguments: Any
    ) -> None:
        """Launch `kernel(rows, lanes, part, table, buffers, flag, *arguments)` on many tensors, each a tuple of related
        buffers.

        The buffers of a tuple have the same size, all tuples have the same length, and none is empty. A row of lanes
        processes `part` elements of one tensor. The table has the number of tensors, the first row of each, and the
        size of each. If the flag is not 0, an index was out of range, and the kernel changes nothing.
        """
        sizes = [buffers[0].size for buffers in tensors]
        part = self.grid.part(sum(sizes))
        firsts, rows = [], 0
        for size in sizes:
            firsts.append(rows)
            rows += -(-size // part)
        buffers = tuple([buffer for each in tensors for buffer in each])
        table = self.numbers(len(sizes), *firsts, *sizes)
        self.each_row(kernel, rows, part, np.int32(part), table, buffers, self.flag, *arguments)

    @alone
    def defer(
        self,
        kernel: Callable[..., None],
        results: tuple[DeviceBuffer, ...],
        operands: tuple[DeviceBuffer, ...],
        *arguments: Any,
    ) -> None:
        """Defer a launch that computes results from operands of the same size; it is combined into one `each_tensor`
        with others of its kind that are deferred before a result is read."""
        if results[0].size:
            self._deferred.add(DeferredLaunch(kernel, results, operands, arguments, self.context))

    @alone
    def flush(self) -> None:
        """Launch all deferred work."""
        self._deferred.launch()

    @abstractmethod
    def product(
        self,
        out: DeviceBuffer,
        x: DeviceBuffer,
        y: DeviceBuffer,
        *,
        x_transposed: bool = False,
        y_transposed: bool = False,
        x_layout: MatrixLayout | None = None,
        y_layout: MatrixLayout | None = None,
        out_layout: MatrixLayout | None = None,
        matrices: int | None = None,
        bias: DeviceBuffer | None = None,
    ) -> None:
        """Compute out = x·y for float32 matrices or equal stacks: (..., m, k) · (..., k, n) -> (..., m, n), none empty.

        A transposed operand is stored transposed: x (..., k, m), y (..., n, k). An operand with a layout may have any
        shape that covers the layout; so may out, whose layout then determines the sizes. `matrices` is the number of
        products, by default that of out's shape. A bias (n) is added to each row, only for a single product.
        """

    def script(self, calls: Sequence[Call], graphs: CudaGraphs = "auto") -> Script:
        """Return calls of this device's methods to be repeated, captured as a graph as `graphs` says, if supported."""
        return Script(self, calls)

    # Work on a second stream ---------------------------------------------------------------------------------------

    def aside(self, number: int, work: Aside, *buffers: DeviceBuffer) -> None:
        """Start `work` on a second stream, after all earlier work of this device.

        Work on the second stream runs in order. Until `join` with the same number and buffers, nothing may overwrite
        what the work reads, or read what it writes. Raises ProgramError on a device without a second stream.
        """
        raise ProgramError(f"exchanges between processes are not supported on {self}; run each process on a GPU")

    def join(self, number: int, *buffers: DeviceBuffer) -> None:
        """Make all later work wait for the work that was started as `number`."""
        raise ProgramError(f"exchanges between processes are not supported on {self}; run each process on a GPU")

    # Indices out of range ------------------------------------------------------------------------------------------

    @property
    def flag(self) -> DeviceBuffer:
        """Return a number on the device: 0, or that of the first op of this watch with an index out of range."""
        watch = self.context.watch
        if watch.flag is None:
            watch.flag = self.upload(np.zeros(1, np.int32))
        return watch.flag

    def watched(self, shape: tuple[int, ...], idx: DeviceBuffer, require: Require = require_in_range) -> int:
        """Return the number to which a kernel sets the flag if `require(op, shape, idx)` would raise, by default for an
        index out of range."""
        op, region, _, watch = self.context
        watch.watched.append(Watched(op, region, user_frame(), shape, idx, require))
        return len(watch.watched)

    @property
    def watches(self) -> bool:
        """Return whether an op that may have an index out of range has been launched."""
        return bool(self.context.watch.watched)

    @alone
    def raise_flagged(self, watch: Watch | None = None) -> None:
        """Raise RangeError if an index was out of range in an op of a watch, by default the last op's."""
        self.flush()
        watch = self.context.watch if watch is None else watch
        self.context = self.context._replace(watch=watch)
        if not watch.watched:
            return
        number = int(self.download(self.flag)[0])
        watched, watch.watched = watch.watched, []
        if number:
            watch.flag = None
            raise range_error(watched[number - 1], self.download)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done."""


def pointer_type(dtype: DType) -> DType:
    """Return the dtype as seen by kernels: masks are bytes."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def nbytes_on_device(buffer: DeviceBuffer) -> int:
    """Return how many bytes the elements of a buffer take."""
    return buffer.size * pointer_type(buffer.dtype).itemsize
