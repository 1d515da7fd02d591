"""The declarations of an exported program: its inputs with sizes and ranges, its parameters and buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..imported.names import argument_name
from ..ops.errors import UnsupportedError, UsageError, nearest
from ..ops.spec import Spec
from ..ops.types import BOOL, INT32, DType, dtype_name
from .library import array_of, dtype_of

_UNBOUNDED = 2**31 - 1  # a range that ends here or above has no declared end
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


class Sizes:
    """Names for the size symbols of a program.

    A symbol is named after its torch.export.Dim, if the program still has it; else after the first input and axis with
    that size, `x_0`. `given` maps those names to others.
    """

    def __init__(self, program: Any, given: Mapping[str, str]):
        self.ranges = dict(program.range_constraints)
        self.given = dict(given)
        self.asked: dict[str, None] = {}
        self.names: dict[str, str] = {}

    def entries(self, tensor: Any, name: str) -> tuple[int | str, ...]:
        """Return the sizes of an input, as numbers and texts."""
        sizes: list[int | str] = []
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            expression = size.node.expr
            for symbol in sorted(expression.free_symbols, key=str):
                if str(symbol) not in self.names:
                    self._name(symbol, size.node.shape_env, f"{name}_{axis}")
            sizes.append(self._text(expression))
        return tuple(sizes)

    def _name(self, symbol: Any, shapes: Any, otherwise: str) -> None:
        wanted = _name_of_dim(symbol, shapes) or otherwise
        self.asked[wanted] = None
        wanted = self.given.get(wanted, wanted)
        if not wanted.isidentifier():
            raise UsageError(f"sizes=: {wanted!r} is not a name of a size; a name is like batch")
        self.names[str(symbol)] = argument_name(wanted, set(self.names.values()))

    def _text(self, expression: Any) -> str:
        text = _SYMBOL.sub(lambda found: self.names.get(found[0], found[0]), str(expression))
        return text.replace(" ", "")

    def where(self) -> Iterator[str]:
        """Yield the ranges of the sizes, as constraints."""
        for expression, bounds in self.ranges.items():
            if not all(str(symbol) in self.names for symbol in expression.free_symbols):
                continue
            text, low, high = self._text(expression), _int(bounds.lower), _int(bounds.upper)
            if low is not None and low > 1:
                yield f"{text} >= {low}"
            if high is not None and high < _UNBOUNDED:
                yield f"{text} <= {high}"

    def require_all_known(self) -> None:
        """Raise UsageError for an unknown name in `sizes=`."""
        for name in self.given:
            if name not in self.asked:
                there = ", ".join(self.asked) or "none"
                raise UsageError(f"sizes=: no size is called {name!r}{nearest(name, self.asked)}; there are {there}")


def _int(bound: Any) -> int | None:
    try:
        return int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None  # infinite


def _name_of_dim(symbol: Any, shapes: Any) -> str | None:
    """Return the name that the user gave a size; PyTorch keeps it with its places, but files omit it."""
    names = getattr(shapes, "source_name_to_debug_name", None) or {}
    for source in (getattr(shapes, "var_to_sources", None) or {}).get(symbol, ()):
        own = getattr(source, "source_name", None)
        place = getattr(source, "name", None)
        place = place() if callable(place) else place
        found = own or names.get(place)
        if isinstance(found, str) and found.isidentifier():
            return found
    return None


def spec_dtype(dtype: DType) -> str | None:
    """Return the dtype for the Spec of an input: floats have the program's, short integers are held in int64."""
    if dtype.kind == "f":
        return None
    return dtype_name(dtype) if dtype in (BOOL, INT32) else "int64"


def spec_of(tensor: Any, name: str, sizes: Sizes) -> Spec:
    """Return the Spec of an input."""
    if not hasattr(tensor, "shape"):
        raise UnsupportedError(
            f"the input {name!r} is a number that may change from call to call; export the module with a fixed one"
        )
    return Spec(sizes.entries(tensor, name), spec_dtype(dtype_of(tensor.dtype)))


def arrays_of(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return arrays by name, one per tensor, and a map from alternative names to the first name of a tensor.

    Raises UnsupportedError for tensors that share part of their memory, since they would be trained separately.
    """
    arrays: dict[str, Any] = {}
    first: dict[tuple[Any, ...], str] = {}
    spans: dict[int, list[tuple[int, int, str]]] = {}
    ties: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
            if key in first:
                ties[name] = first[key]
                continue
            first[key] = name
            _require_apart(name, tensor, spans)
        arrays[name] = array_of(tensor)
    return arrays, ties


def _require_apart(name: str, tensor: Any, spans: dict[int, list[tuple[int, int, str]]]) -> None:
    start = tensor.data_ptr()
    reach = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride())) + 1
    end = start + reach * tensor.element_size()
    others = spans.setdefault(tensor.untyped_storage().data_ptr(), [])
    for other_start, other_end, other in others:
        if start < other_end and other_start < end:
            raise UnsupportedError(f"the parameters {other!r} and {name!r} share a part of their memory")
    others.append((start, end, name))


def is_float(array: Any) -> bool:
    """Whether an array has floats."""
    return bool(np.asarray(array).dtype.kind == "f")
