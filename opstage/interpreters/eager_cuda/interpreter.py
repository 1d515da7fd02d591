"""`CudaOps`: runs each op at once on device buffers. Under a tape it is the eager CUDA interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...compiler.codegen.composites import is_fixed
from ...compiler.codegen.cuda.kernels import fused
from ...compiler.gpu.buffer import DeviceBuffer
from ...compiler.gpu.device import Device
from ...compiler.gpu.launches import OpContext, Watch
from ...compiler.gpu.probe import find_device, gpus_seen
from ...distributed.processes import own_number
from ...init.schemes import Elementary
from ...ops.body import Body
from ...ops.errors import ProgramError, UnsupportedError
from ...ops.host_arrays import DEVICE_DTYPES, as_array, has_wire_form, no_wire_form, to_wire, wire_dtype
from ...ops.index_checks import find_indices
from ...ops.primitive import NO_STATIC, Primitive, Static, distinct
from ...ops.trees import no_ref
from ...ops.types import FLOAT32, DType, TensorType, as_dtype, dtype_name, show_shape
from ...options import Options
from ...transforms.interpreter import BaseInterpreter
from .kernels import KERNELS
from .kernels.elementwise import update_kernel
from .kernels.random import FILLS
from .kernels.reduction import total

_KNOWN_LIMIT = 1 << 13
_FUSED: dict[Any, Callable[..., Any] | None] = {}  # by (primitive, operand types, statics); None: no kernels


def _entry(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Callable[..., Any] | None:
    """Return the generated kernels of a composite as a table entry; None if they do not support all of it."""
    update = update_kernel(primitive)
    if update is not None:
        return update
    made = fused(primitive, types, static)
    if made is None:
        return None
    if not made.checks:
        return lambda device, types, *operands, **static: made(device, operands, total)
    if find_indices(primitive, types, static) is None:
        return None  # the index at fault could not be reported

    def watching(device: Device, types: Any, *operands: DeviceBuffer, **static: Any) -> tuple[DeviceBuffer, ...]:
        named = find_indices(primitive, operands, static)
        assert named is not None
        return made(device, operands, total, device.watched(named.shape, named.indices, named.require))

    return watching


class OnDevice(BaseInterpreter[DeviceBuffer]):
    """A base interpreter whose values are device buffers: transfers and checks.

    It computes in the dtype that floats of the options' dtype have on the device, see `register_wire_format`.

    Raises UsageError without a device.
    """

    __slots__ = ("device", "_host_dtype", "_watch")

    def __init__(self, options: Options, device: Device | None = None):
        self._host_dtype = as_dtype(options.dtype)
        super().__init__(wire_dtype(self._host_dtype), options.seed)
        self.device = device if device is not None else find_device(own_number(options, gpus_seen))
        self._watch = Watch()

    @property
    @override
    def computes(self) -> bool:
        return self.device.computes

    @override
    def put(self, value: Any, /) -> DeviceBuffer:
        if type(value) is DeviceBuffer:
            return self._require_here(value)
        return self.device.upload(to_wire(as_array(value, self._host_dtype)))

    @override
    def stored_dtype(self, dtype: DType, /) -> DType:
        return wire_dtype(dtype)

    @override
    def get(self, ref: DeviceBuffer, /) -> Any:
        device = self._require_here(ref).memory.device
        with device.lock:
            device.raise_flagged(self._watch)
            return device.download(ref)

    @override
    def fill(self, initialiser: Elementary, shape: tuple[int, ...], dtype: DType, /) -> DeviceBuffer:
        kernel = FILLS.get(type(initialiser)) if dtype == FLOAT32 else None
        if kernel is None:
            return super().fill(initialiser, shape, dtype)
        with self.device.lock:
            context = self.device.context._replace(op="fill", region=self.cursor.region.name, watch=self._watch)
            made: DeviceBuffer = self.device.serve(context, kernel, self.device, initialiser, shape)
            return made

    @override
    def unsupported(self, primitive: Primitive) -> UnsupportedError:
        if has_wire_form(self.dtype):
            return super().unsupported(primitive)
        error = UnsupportedError(no_wire_form(self.dtype), op=primitive.name, region=self.cursor.region.name)
        error.every_op = True
        return error

    @override
    def raise_pending(self) -> None:
        with self.device.lock:
            self.device.raise_flagged(self._watch)

    @override
    def execute_each(
        self, program: Callable[..., tuple[DeviceBuffer, ...]], refs: tuple[DeviceBuffer, ...], step: int = 0
    ) -> tuple[DeviceBuffer, ...]:
        results = super().execute_each(program, refs, step)
        self.device.flush()  # while a failure can still leave everything unchanged
        return results

    @override
    def empty_cache(self) -> None:
        self.device.shrink()

    @override
    def adopt(self, ref: Any, /) -> DeviceBuffer:
        if type(ref) is DeviceBuffer:
            return self._require_here(ref)
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> DeviceBuffer:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        return self.device.upload(to_wire(np.asarray(array)))

    def _require_here(self, ref: DeviceBuffer) -> DeviceBuffer:
        """Raise ProgramError for a tensor of another device: its address is invalid here."""
        if ref.memory.device is not self.device:
            raise wrong_device(ref, self.device)
        return ref


def wrong_device(ref: DeviceBuffer, device: Device) -> ProgramError:
    """Return the error for a tensor on another device than the computing one."""
    return ProgramError(
        f"a tensor of shape {show_shape(ref.shape)} is on {ref.memory.device}, but this interpreter computes on "
        f"{device}; bring it to the host, as an array, and put it where it is used"
    )


@final
class CudaOps(OnDevice):
    """Computes on device buffers as refs. An op without a kernel is an error, and never runs on the CPU."""

    __slots__ = ("kernels", "_options", "_generates", "_precision", "_known")

    def __init__(
        self,
        options: Options,
        device: Device | None = None,
        kernels: Mapping[Primitive, Callable[..., Any]] = KERNELS,
        generates: bool = True,
    ):
        """Generate kernels for composites without an entry in `kernels` if `generates` is set, else decompose them."""
        super().__init__(options, device)
        self._options = options
        self._generates = generates
        self._precision = options.matmul_precision
        self.kernels = kernels
        self._known: dict[Any, tuple[TensorType, ...]] = {}

    def at(self, device: Device) -> CudaOps:
        """Return this interpreter on another device, such as one that only records calls."""
        return CudaOps(self._options, device, self.kernels, self._generates)

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return primitive in self.kernels and has_wire_form(self.dtype)

    @property
    @override
    def fuses(self) -> bool:
        return self._generates

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self._generated(primitive, types, NO_STATIC) is not None

    # Interpreter methods ------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[DeviceBuffer, ...], static: Static, /) -> tuple[DeviceBuffer, ...]:
        operands = tuple([ref.type for ref in refs])
        types = self.infer(primitive, operands, static)
        kernel = self.kernels.get(primitive) or self._generated(primitive, operands, static)
        if kernel is None:
            if primitive.decomposition is None:
                raise self.unsupported(primitive)
            return self.decompose(primitive, refs, static)
        device = self.device
        for ref in refs:
            if not device.holds(ref):
                raise wrong_device(ref, device)
        context = OpContext(primitive.name, self.cursor.region.name, self._precision, self._watch)
        with device.lock:
            results: tuple[DeviceBuffer, ...] = device.serve(context, kernel, device, types, *refs, **static)
        return results

    def _generated(
        self, primitive: Primitive, types: tuple[TensorType, ...], static: Static
    ) -> Callable[..., Any] | None:
        """Return an entry for a composite whose kernels can be generated, created on first use."""
        if not self._generates or not is_fixed(primitive) or any(isinstance(value, Body) for value in static.values()):
            return None
        key = (primitive, types, *distinct(static))
        if key not in _FUSED:
            if len(_FUSED) >= _KNOWN_LIMIT:
                _FUSED.clear()
            _FUSED[key] = _entry(primitive, types, static)
        return _FUSED[key]

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        key = (primitive, types, *static.values())
        known = self._known.get(key)
        if known is None:
            known = primitive.infer(types, static, self.cursor.region.name)
            self._require_device_form(primitive, known)
            if not any(isinstance(value, Body) for value in static.values()):
                if len(self._known) >= _KNOWN_LIMIT:
                    self._known.clear()
                self._known[key] = known
        return known

    def _require_device_form(self, primitive: Primitive, types: tuple[TensorType, ...]) -> None:
        for type_ in types:
            if type_.dtype not in DEVICE_DTYPES:
                names = ", ".join(map(dtype_name, DEVICE_DTYPES))
                raise UnsupportedError(
                    f"a result of {dtype_name(type_.dtype)} is not supported on the device, which holds {names}; "
                    "cast to one of these, or use device 'cpu'",
                    op=primitive.name,
                    region=self.cursor.region.name,
                )
