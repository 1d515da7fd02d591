"""A GPU, through cuda.core: one stream, a memory pool, and kernels compiled to machine code."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.errors import DeviceError, LocatedError, OutOfMemoryError
from ...ops.types import TensorType
from ...options import CudaGraphs
from . import cublas as gemm
from .buffer import (
    Aside,
    DeviceBuffer,
    Kernel,
    MatrixLayout,
    Memory,
    PatientEvent,
    Pointers,
    Signature,
    layout_of,
    signature_of,
)
from .compiler import compile_kernel
from .cublas import Gemm, ProductFailed, Shape, alignment
from .device import Device, Grid, alone, nbytes_on_device, register_owner
from .launches import Call, Captured, Script
from .machine import GO_ON, Failures
from .memory import SizeClasses, Staging, size_class

BLOCKS_OF_A_PROCESSOR = 32
"""Further blocks of a kernel that strides over its elements would only queue for a multiprocessor."""


_entered = threading.local()
"""Has `gpu`, the current device of this thread."""


@final
class Gpu(Device):
    """A GPU visible to this process. Memory handles are Buffers of cuda.core.

    core, driver   the modules cuda.core and cuda.bindings.driver, or test doubles
    library        loads cuBLASLt
    number         its index in the driver's list, which CUDA_VISIBLE_DEVICES restricts
    """

    def __init__(self, core: Any = None, driver: Any = None, library: Callable[[], Any] = gemm.load, number: int = 0):
        super().__init__(number=number)
        self._core = core if core is not None else import_module("cuda.core")
        self._driver = driver if driver is not None else import_module("cuda.bindings.driver")
        self._library = library
        self._failures = Failures("GPU")
        try:
            self._open()
        except Exception as error:
            self._explain(error, "it was opened")
            raise
        self._size_classes: SizeClasses[Any] = SizeClasses(self._make, self._end)
        self._staging = Staging(self)
        self._gemm: Gemm | None = None
        self._workspace: Any = None
        self._side: Any = None
        self._flights: dict[int, Any] = {}
        self._gave_up = False
        self._kernels: dict[tuple[Kernel, Signature], Any] = {}
        self._configurations: dict[tuple[int, int], Any] = {}
        register_owner(self)

    def _open(self) -> None:
        self._gpu = self._core.Device(self.number)
        self._enter()
        self._stream = self._gpu.create_stream()
        self._resource = self._core.DeviceMemoryResource(self._gpu.device_id, self._core.DeviceMemoryResourceOptions())
        capability = self._gpu.compute_capability
        self.cc = int(capability[0]), int(capability[1])
        self.name = self._failures.gpu = str(self._gpu.name)
        self.grid = Grid(most_blocks=BLOCKS_OF_A_PROCESSOR * int(self._gpu.properties.multiprocessor_count))

    @property
    @override
    def identity(self) -> str:
        return f"{self.name} {self._gpu.uuid}"

    @override
    def enter(self) -> None:
        self._enter()

    def _enter(self) -> None:
        """Make this the thread's current device, which the driver requires in each thread and after using another
        device."""
        if getattr(_entered, "gpu", None) is not self:
            self._gpu.set_current()
            _entered.gpu = self

    # Memory ---------------------------------------------------------------------------------------------------------

    @override
    def allocate(self, nbytes: int) -> Any:
        try:
            return self._size_classes.take(nbytes)
        except Exception as error:
            if not _is_out_of_memory(error):
                self._explain(error, "memory was allocated")
                raise
        self.empty_cache()  # freeing blocks of other sizes may make room
        try:
            return self._size_classes.take(nbytes)
        except Exception as error:
            if _is_out_of_memory(error):
                raise self._out_of_memory(nbytes) from error
            self._explain(error, "memory was allocated")
            raise

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        self._size_classes.give(handle, nbytes)

    def _make(self, nbytes: int) -> Any:
        self._enter()
        return self._resource.allocate(nbytes, stream=self._stream)

    def _end(self, block: Any) -> None:
        block.close(self._stream)

    def _out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        free, total = self._results(self._driver.cuMemGetInfo())
        return OutOfMemoryError(
            f"{size_class(nbytes):,} bytes were requested on the {self.name}, which has {free:,} free of {total:,}; "
            f"tensors hold {self.used:,} bytes, {self.peak:,} at most so far. Parameters are as they were; make the "
            "batch smaller, or end other processes that use memory of this GPU"
        )

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        whole = memory.handle
        return self._core.Buffer.from_handle(int(whole.handle) + offset, nbytes, owner=whole)

    @override
    @alone
    def empty_cache(self) -> int:
        try:
            self._enter()
            self._take_back()
            kept = self._size_classes.empty_cache()
            self._watched()
            self._stream.sync()
            self._results(self._driver.cuMemPoolTrimTo(self._resource.handle, 0))
        except Exception as error:
            self._explain(error, "memory was returned to it")
            raise
        return kept

    @property
    def reserved(self) -> int:
        """Return the bytes that the driver has allocated to this device's pool."""
        with self.lock:
            return int(self._resource.attributes.used_mem_current)

    # Copies ---------------------------------------------------------------------------------------------------------

    @override
    @alone
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        buffer = self.empty(TensorType(array.shape, array.dtype))
        try:
            self._enter()
            self._staging.write(int(buffer.handle.handle), np.ascontiguousarray(array))
        except Exception as error:
            self._explain(error, "an array was copied to it")
            raise
        return buffer

    @override
    @alone
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        array = np.empty(buffer.shape, buffer.dtype)
        try:
            self._enter()
            self._staging.read(int(buffer.handle.handle), array)
        except Exception as error:
            self._explain(error, "an array was copied back")
            raise
        return array

    def pinned(self, nbytes: int) -> int:
        """Allocate pinned host memory until the process ends, and return its address."""
        (address,) = self._results(self._driver.cuMemAllocHost(nbytes))
        return int(address)

    def copy_to_device(self, target: int, host: int, nbytes: int) -> None:
        """Copy from pinned memory to the GPU; returns before it is done."""
        self._results(self._driver.cuMemcpyHtoDAsync(target, host, nbytes, self._stream.handle))

    def copy_to_host(self, host: int, source: int, nbytes: int) -> None:
        """Copy from the GPU to pinned memory; returns before it is done."""
        self._results(self._driver.cuMemcpyDtoHAsync(host, source, nbytes, self._stream.handle))

    def event(self) -> Any:
        """Record an event that completes when all work launched so far is done."""
        recorded = self._stream.record()
        return recorded if self.patience is None else PatientEvent(recorded, self.patience)

    # Kernels --------------------------------------------------------------------------------------------------------

    @override
    @alone
    def launch(self, kernel: Kernel, blocks: int, threads: int, *arguments: Any) -> None:
        held = self._with_tables(arguments) if tuple in map(type, arguments) else arguments
        try:
            self._enter()
            loaded = self._loaded(kernel, signature_of(held))
            configuration = self._configurations.get((blocks, threads))
            if configuration is None:
                configuration = self._core.LaunchConfig(grid=blocks, block=threads)
                self._configurations[blocks, threads] = configuration
            given = [
                a.handle if type(a) is DeviceBuffer else a.table.handle if type(a) is Pointers else a for a in held
            ]
            self._core.launch(self._stream, configuration, loaded, *given)
        except Exception as error:
            self._explain(error, f"the kernel {kernel.__name__} was started", at_op=True)
            raise

    def _with_tables(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a launch, with tuples of buffers as tables of addresses on the device."""
        return tuple([self._pointers(a) if type(a) is tuple else a for a in arguments])

    def _pointers(self, buffers: tuple[DeviceBuffer, ...]) -> Pointers:
        table = self.upload(np.array([int(buffer.handle.handle) for buffer in buffers], np.int64))
        return Pointers(table, buffers[0].dtype)

    def _loaded(self, kernel: Kernel, signature: Signature) -> Any:
        loaded = self._kernels.get((kernel, signature))
        if loaded is None:
            compiled = compile_kernel(kernel, signature, self.cc)
            loaded = self._core.ObjectCode.from_cubin(compiled.cubin).get_kernel(compiled.name)
            self._kernels[kernel, signature] = loaded
        return loaded

    @override
    @alone
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
        batch, (rows, columns, *_) = matrices or math.prod(out.shape[:-2]), layout_of(out, out_layout)
        left = layout_of(x, x_layout)
        extent = left.rows if x_transposed else left.columns
        addresses = _start(out, out_layout), _start(x, x_layout), _start(y, y_layout)
        layouts = _from_start(x_layout), _from_start(y_layout), _from_start(out_layout)
        shape = Shape(batch, rows, columns, extent, x_transposed, y_transposed, *layouts, alignment(*addresses))
        try:
            self._enter()
            if self._gemm is None:
                self._gemm = Gemm(self._library(), self._reserve, int(self._stream.handle))
            self._gemm.product(
                *addresses, shape, self.context.precision, None if bias is None else int(bias.handle.handle)
            )
        except ProductFailed as error:
            self.synchronize()  # raises the driver's own error instead, if there is one
            raise DeviceError(f"the {self.name} failed when a matrix product was started: {error}; {GO_ON}") from error
        except LocatedError as error:
            error.place(self.context.op, self.context.region)
            raise

    def _reserve(self, nbytes: int) -> int:
        if self._workspace is None:
            self._workspace = self.allocate(nbytes)
        return int(self._workspace.handle)

    # Graphs ---------------------------------------------------------------------------------------------------------

    @override
    @alone
    def script(self, calls: Sequence[Call], graphs: CudaGraphs = "auto") -> Script:
        # uploaded before the capture, and kept alive for it
        ready = [
            call._replace(arguments=self._with_tables(call.arguments)) if call.method == "launch" else call
            for call in calls
        ]
        return Captured(self, self, ready, graphs)

    @alone
    def load(self, call: Call) -> None:
        """Compile the kernel of a launch, if it is one, and load it on the GPU."""
        if call.method != "launch":
            return
        kernel, _, _, *arguments = call.arguments
        self.context = call.context(self)
        try:
            self._enter()
            self._loaded(kernel, signature_of(tuple(arguments)))
        except Exception as error:
            self._explain(error, f"the kernel {kernel.__name__} was loaded", at_op=True)
            raise

    @alone
    def captured(self, work: Callable[[], None]) -> Any:
        """Capture the launches of `work` as a graph, without running them."""
        try:
            self._enter()
            builder = self._stream.create_graph_builder()
            try:
                builder.begin_building()
                try:
                    work()
                finally:  # the stream is unusable until the capture ends
                    builder.end_building()
                return builder.complete()
            finally:
                builder.close()
        except Exception as error:
            self._explain(error, "a step was captured")
            raise

    @alone
    def replay(self, graph: Any) -> None:
        """Launch a captured graph; returns before it is done."""
        try:
            self._enter()
            graph.launch(self._stream)
        except Exception as error:
            self._explain(error, "a captured step was started")
            raise

    def capture_failed(self, error: DeviceError) -> None:
        """Warn, once, that a capture failed and its calls are made one by one."""
        if not self._gave_up:
            self._gave_up = True
            warnings.warn(
                "a compiled step could not be captured as a CUDA graph, so its calls run one by one, with the "
                f"same results and more work for the host: {error.reason}. Options(cuda_graphs='always') makes this an "
                "error, and 'never' skips the capture",
                RuntimeWarning,
                stacklevel=2,
            )

    # Work on a second stream ---------------------------------------------------------------------------------------

    @override
    @alone
    def aside(self, number: int, work: Aside, *buffers: DeviceBuffer) -> None:
        # Reading a handle launches what its buffer waits for.
        places = [(int(each.handle.handle), nbytes_on_device(each)) for each in buffers]
        try:
            self._enter()
            if self._side is None:
                self._side = self._gpu.create_stream()
            self._side.wait(self._stream.record())
            work(self._side, places)
            self._flights[number] = self._side.record()
        except Exception as error:
            self._explain(error, "an exchange was started", at_op=True)
            raise

    @override
    @alone
    def join(self, number: int, *buffers: DeviceBuffer) -> None:
        try:
            self._enter()
            self._stream.wait(self._flights.pop(number))
        except Exception as error:
            self._explain(error, "an exchange was waited for", at_op=True)
            raise

    def _watched(self) -> None:
        """Wait for the work of other GPUs on which this GPU waits, until `patience` gives up."""
        if self.patience is not None:
            self.event().sync()

    # Waiting --------------------------------------------------------------------------------------------------------

    @override
    @alone
    def synchronize(self) -> None:
        try:
            self._enter()
            self._watched()
            self._stream.sync()
        except Exception as error:
            self._explain(error, "its work was waited for")
            raise

    # Errors of the driver ------------------------------------------------------------------------------------------

    def _results(self, outcome: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the results of a driver call. Raises RuntimeError, with the name of its status, if it failed."""
        status, *values = outcome
        if int(status):
            raise RuntimeError(f"the CUDA driver returned {getattr(status, 'name', status)}")
        return tuple(values)

    def _explain(self, error: Exception, when: str, at_op: bool = False) -> None:
        """Raise a DeviceError for an error of the driver; leave others unchanged, adding the op if `at_op`."""
        op, region, *_ = self.context
        found = self._failures.error(error, when, op, region)
        located = found if found is not None else error
        if at_op and isinstance(located, LocatedError):
            located.place(op, region)
        if found is not None:
            raise found from error


def _start(operand: DeviceBuffer, layout: MatrixLayout | None) -> int:
    """Return the address of the first matrix."""
    return int(operand.handle.handle) + (0 if layout is None else layout.first * operand.dtype.itemsize)


def _from_start(layout: MatrixLayout | None) -> MatrixLayout | None:
    """Return the layout relative to the first matrix: where that is makes no other algorithm."""
    return layout if layout is None or not layout.first else layout._replace(first=0)


def _is_out_of_memory(error: Exception) -> bool:
    return "OUT_OF_MEMORY" in str(error)
