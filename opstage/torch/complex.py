"""Complex tensors of PyTorch programs, as pairs of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..operators.values import TensorValue
from ..ops.errors import UnsupportedError
from ..ops.types import DType, Shape


class ComplexValue(NamedTuple):
    """A complex tensor or number as its real and imaginary part."""

    re: TensorValue[Any]
    im: TensorValue[Any]

    @property
    def shape(self) -> Shape:
        """The shape of either part."""
        return self.re.shape

    @property
    def dtype(self) -> DType:
        """The element type of either part."""
        return self.re.dtype


def is_complex(value: Any) -> bool:
    """Whether an argument is complex, or a list with a complex entry."""
    if isinstance(value, list):
        return any(is_complex(each) for each in value)
    return isinstance(value, (ComplexValue, complex))


def parts(value: Any) -> tuple[Any, Any]:
    """Return the real and imaginary part of a tensor or number, which may be real, as tensors or numbers."""
    if isinstance(value, ComplexValue):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, 0.0


def part_of(value: Any, i: int) -> Any:
    """Return part i of complex values, also in lists, and other values unchanged."""
    if isinstance(value, list):
        return [part_of(each, i) for each in value]
    return parts(value)[i] if isinstance(value, (ComplexValue, complex)) else value


def joined(re: Any, im: Any) -> Any:
    """Combine real and imaginary results, single or several, to complex ones."""
    if isinstance(re, (list, tuple)) and not isinstance(re, TensorValue):
        return [joined(a, b) for a, b in zip(re, im, strict=True)]
    return ComplexValue(re, im)


def as_declared(
    value: Any, complex_results: frozenset[int], zero: Callable[[TensorValue[Any]], TensorValue[Any]]
) -> Any:
    """Return the results of a node, complex if the program declares them so. Raises UnsupportedError if that fails."""
    several = isinstance(value, list)
    found = list(value) if several else [value]
    for i, each in enumerate(found):
        if i in complex_results and isinstance(each, TensorValue):
            found[i] = ComplexValue(each, zero(each))
        elif i not in complex_results and isinstance(each, ComplexValue):
            raise UnsupportedError("its result is real, and it is not known of complex tensors")
    return found if several else found[0]
