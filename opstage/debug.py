"""`opstage.debug.print`: print a tensor's values wherever the program runs.

The op has an external effect, so no pass removes it or computes it in advance. Nothing reads its result, so it changes
no number, and no derivative repeats it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np
from typing_extensions import deprecated

from .ops.catalogue import register
from .ops.dispatch import Quietly
from .ops.errors import UsageError
from .ops.primitive import Context, Effect, Primitive
from .ops.protocol import Ops
from .ops.types import BOOL, TensorType, dtype_name, show_shape
from .transforms.control_flow import every_primitive

__all__ = ["print", "redirect"]
__dir__ = __all__.copy

R = TypeVar("R", bound=Any)


def print(ops: Ops[R], x: R, name: str = "x", *, values: bool = False, gradient: bool = False) -> R:
    """Print x when it is computed, and return x.

    The line has the name, shape, dtype, minimum, mean and maximum of x, and the number of non-finite elements.

    ops        the first argument of the program, or a session
    x          a tensor of any shape and dtype
    name       what the line starts with
    values     print the values instead of the summary, shortened as NumPy does
    gradient   print the gradient of x too, as `grad NAME`, when the backward pass reaches it

    It prints in every run and in every iteration of a loop, with the training step and the iteration. A check prints
    the shape, with its named sizes. A session computes x at once. A program compiled for a GPU prints after all its
    launches, in their order, before any parameter is changed. The output goes to `sys.stderr`, or to the function
    passed to `redirect`. JAX: jax.debug.print.

    Raises:
        ProgramError: x that is not a tensor.
        UsageError: a name that is not a string; gradient=True in a session, whose `backward` returns the gradient.
    """
    if not isinstance(name, str):
        raise UsageError(f"debug.print: argument name: expected a string, got {name!r}. Call debug.print(ops, x, name)")
    interpreter: Any = ops
    x = interpreter.adopt(x)
    if hasattr(interpreter, "get_value"):  # a session, which computes an op only when a value needs it
        if gradient:
            raise UsageError(
                "debug.print: argument gradient: not supported in a session. Print the gradient that "
                "session.backward(…) returns for the tensor"
            )
        _kernel(
            np.asarray(interpreter.get_value(x)), interpreter.get_value(interpreter.step()), name=name, values=values
        )
        return x
    with Quietly(interpreter.cursor):
        _bind(interpreter, x, name, values)
        if not gradient:
            return x
        printed: R = interpreter.bind(_PRINT_GRADIENT, (x,), {"name": name, "values": bool(values)})[0]
        return printed


@contextmanager
def redirect(write: Callable[[str], Any]) -> Iterator[None]:
    """Send every line that `print` prints in this thread to `write` while the block runs: `redirect(lines.append)`.

    Raises:
        UsageError: write that is not a function.
    """
    if not callable(write):
        raise UsageError(
            f"debug.redirect: argument write: expected a function of a line, got {write!r}. Pass lines.append or print"
        )
    before = getattr(_HERE, "write", None)
    _HERE.write = write
    try:
        yield
    finally:
        _HERE.write = before


@deprecated("opstage.debug.show is now opstage.debug.print")
def show(ops: Ops[R], x: R, name: str = "x", *, values: bool = False, gradient: bool = False) -> R:
    """Call `print`, under its name of the last release."""
    return print(ops, x, name, values=values, gradient=gradient)


@deprecated("opstage.debug.showing_to is now opstage.debug.redirect")
def showing_to(write: Callable[[str], Any]) -> AbstractContextManager[None]:
    """Call `redirect`, under its name of the last release."""
    return redirect(write)


_HERE = threading.local()


def _write(line: str) -> None:
    write = getattr(_HERE, "write", None)
    if write is None:
        sys.stderr.write(f"{line}\n")
    else:
        write(line)


def _bind(ops: Any, x: Any, name: str, values: bool) -> Any:
    base = ops
    while hasattr(base, "inner"):
        base = base.inner
    if not getattr(base, "executes", True):
        _write(f"{name}: {show_shape(x.shape)} {dtype_name(x.dtype)}")
    return ops.bind(_PRINT, (x, ops.step(), *ops.iterations()), {"name": name, "values": bool(values)})[0]


def _kernel(x: Any, step: Any, *iterations: Any, name: str, values: bool) -> Any:
    if not isinstance(x, np.ndarray):  # a memory prediction, without elements
        return type(x).new((), BOOL)
    at = ", ".join([f"step {int(step)}", *[f"iteration {int(i)}" for i in iterations]])
    _write(f"{name}: {show_shape(x.shape)} {dtype_name(x.dtype)} {_summarize(x, values)} ({at})")
    return np.zeros((), bool)


def _device_kernel(device: Any, types: Any, x: Any, *numbers: Any, name: str, values: bool) -> tuple[Any, ...]:
    from .compiler.gpu.memory import Tally

    if isinstance(device, Tally):
        return (device.empty(types[0]),)
    printed = _kernel(device.download(x), *map(device.download, numbers), name=name, values=values)
    return (device.upload(printed),)


def _summarize(x: Any, values: bool) -> str:
    if values or not x.size or x.dtype.kind not in "fiub":
        return np.array2string(x, threshold=100, edgeitems=3, separator=", ")
    if x.dtype.kind == "b":
        return f"{int(x.sum())} of {x.size} are true"
    finite = np.isfinite(x)
    odd = x.size - int(finite.sum())
    known = x[finite].astype(np.float64)
    text = f"min {known.min():.6g}, mean {known.mean():.6g}, max {known.max():.6g}" if known.size else "none is finite"
    return f"{text}, {int(np.isnan(x).sum())} nan, {odd - int(np.isnan(x).sum())} infinite" if odd else text


def _shape(*types: TensorType, **static: Any) -> tuple[TensorType, ...]:
    return (TensorType((), BOOL),)


def _gradient_vjp(ops: Any, ctx: Context[Any], cotangents: Any, /, *, name: str, values: bool) -> tuple[Any, ...]:
    (cotangent,) = cotangents
    printed = _bind(ops, cotangent, f"grad {name}", values)
    if not ops.iterations():
        return (cotangent,)
    # the backward pass of a loop keeps only what its results depend on; `printed` is False everywhere
    mask = ops.broadcast_to(printed, shape=cotangent.shape)
    return (ops.select(mask, ops.full(shape=cotangent.shape, value=0.0, dtype=cotangent.dtype), cotangent),)


def _gradient_jvp(ops: Any, primals: Any, outputs: Any, tangents: Any, /, **static: Any) -> tuple[Any, ...]:
    return (tangents[0],)


_PRINT = Primitive(
    "print", operands=("x", "step", "*iterations"), shape=_shape, differentiable=False, effects={Effect.EXTERNAL}
)
_PRINT_GRADIENT = Primitive(
    "print_gradient",
    operands=("x",),
    shape=lambda x, **static: (x,),
    vjp=_gradient_vjp,
    jvp=_gradient_jvp,
    decomposition=lambda ops, x, **static: (x,),
)

register("print", _PRINT, {"cpu": _kernel, "exact": _kernel, "cuda": _device_kernel}, every_primitive())
register("print_gradient", _PRINT_GRADIENT, {}, every_primitive())
