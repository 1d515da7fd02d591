"""Cast the numbers of data files to the types of a model's Specs: only exact or documented casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..documents import Document
from ..ops.errors import UsageError
from ..ops.spec import Spec
from ..ops.types import as_dtype, is_float

Array: TypeAlias = "npt.NDArray[Any]"
Kind: TypeAlias = Literal["float", "int", "bool"]
ScaleName: TypeAlias = Literal["none", "standard", "minmax"]

_EXACT = 2**53


def kind_of(spec: Spec) -> Kind:
    """Return the kind of numbers that a Spec declares."""
    dtype = as_dtype(spec.dtype or "float32")
    return "float" if is_float(dtype) else "bool" if dtype == np.bool_ else "int"


def cast(array: Array, kind: Kind, *, image: bool, origin: str, start: int = 0) -> Array:
    """Cast the array to a kind of numbers. Raises UsageError, with the row, if that would lose information.

    float   integers become float64, exactly, so they must be within 2**53, and booleans 0 and 1. With `image`, bytes
            (uint8, or integers from 0 to 255) become float32 between 0 and 1, x/255, and floats must already be in
            that range
    int     floats must be whole, and become int64, as booleans do
    bool    numbers must be 0 and 1

    `start` is the number of the array's first row.
    """

    def require(good: Array, expected: str) -> None:
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            holds = f"row {start + place[0]} holds {array[place]} (rows are counted from 0)"
            raise UsageError(f"{origin}: {holds}; expected {expected}")

    if kind != "bool" and array.dtype.kind == "b":
        return array.astype(np.float64 if kind == "float" else np.int64)
    if kind == "bool" and array.dtype.kind != "b":
        require((array == 0) | (array == 1), "0 or 1, for false and true")
        return array.astype(np.bool_)
    if kind == "float" and array.dtype.kind in "iu":
        if image:
            require((array >= 0) & (array <= 255), "a byte, 0 … 255, as the data trained on held")
            return array.astype(np.float32) / np.float32(255)
        exact = (array <= _EXACT) & (array >= -_EXACT)
        require(exact, "an integer that a float holds exactly, none beyond 2**53")
        return array.astype(np.float64)
    if kind == "float" and image and array.dtype.kind == "f":
        require((array >= 0) & (array <= 1), "a number from 0 to 1: the data trained on were bytes over 255")
    if kind == "int" and array.dtype.kind == "f":
        require((array == np.floor(array)) & (np.abs(array) <= _EXACT), "a whole number")
        return array.astype(np.int64)
    return array


@final
@dataclass(frozen=True)
class Scaling:
    """The map (x - center)/width, per column of a table, or for an array of more axes with one pair of numbers."""

    center: tuple[float, ...]
    width: tuple[float, ...]

    @classmethod
    def of(cls, name: ScaleName, array: Array, *, fixed: Sequence[int] = ()) -> Scaling | None:
        """Return the scaling of an array with one row per example. A constant column is shifted to 0, and columns at
        positions in `fixed` are unchanged.

        standard   mean and standard deviation (over n, not n - 1)
        minmax     the minimum, and the maximum minus it: 0 … 1
        """
        if name == "none":
            return None
        x = (array[:, np.newaxis] if array.ndim == 1 else array if array.ndim == 2 else array.reshape(-1, 1)).astype(
            np.float64
        )
        center, width = (x.mean(0), x.std(0)) if name == "standard" else (x.min(0), np.ptp(x, axis=0))
        level = np.ptp(x, axis=0) == 0
        center, width = np.where(level, x[0], center), np.where(level, 1.0, width)
        center[list(fixed)], width[list(fixed)] = 0.0, 1.0
        if not (np.isfinite(center).all() and np.isfinite(width).all() and (width > 0).all()):
            raise UsageError(f"data.scale={name}: the numbers are too large or too small to be scaled")
        return cls(tuple(center.tolist()), tuple(width.tolist()))

    def apply(self, x: Any) -> Any:
        """Scale x, an array (as float64) or a ref."""
        center, width = self.numbers(len(x.shape))
        return (x - center) / width

    def undo(self, array: Array) -> Array:
        """Return the original array, up to rounding."""
        center, width = self.numbers(array.ndim)
        found: Array = array * width + center
        return found

    def numbers(self, rank: int) -> tuple[Any, Any]:
        """Return center and width in the form for a tensor of this rank."""
        if rank == 1 or len(self.center) == 1:
            return self.center[0], self.width[0]
        return np.array(self.center), np.array(self.width)

    def to_document(self) -> dict[str, Any]:
        """Return plain data that `of_document` reads."""
        return {"center": list(self.center), "width": list(self.width)}

    @classmethod
    def of_document(cls, document: Document) -> Scaling:
        """Read the data of `to_document`. Raises UsageError."""
        parts = [tuple(each.number() for each in document[name].elements()) for name in ("center", "width")]
        if not parts[0] or len(parts[0]) != len(parts[1]) or not all(np.isfinite(parts).ravel()) or min(parts[1]) <= 0:
            raise document.expected("as many finite centers as widths above 0")
        return cls(*parts)


def fitted_shape(array: Array, shape: Sequence[Any]) -> Array:
    """Return the array with rows of a Spec's shape if that only adds or drops an axis of size 1: (n,) and (n, 1)."""
    row = tuple(map(str, shape[1:]))
    if array.ndim == 1 and row == ("1",):
        return array[:, np.newaxis]
    return array[:, 0] if row == () and array.ndim == 2 and array.shape[1] == 1 else array
