"""Checks indices, with the same error on every interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import RangeError
from .loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, class_axis
from .primitive import Primitive, Static
from .types import show_shape

Array = npt.NDArray[Any]


def first_out_of_range(idx: Array, count: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the first entry of `idx`, in row-major order, that is not in [0, count), and its position; None when all
    are."""
    if not idx.size or (idx.min() >= 0 and idx.max() < count):
        return None
    position = np.unravel_index(np.argmax((idx < 0) | (idx >= count)), idx.shape)
    return int(idx[position]), tuple(int(p) for p in position)


def require_in_range(op: str, shape: tuple[int, ...], idx: Array) -> None:
    """Require that every index is a row number of x, a tensor of this shape, for mode "raise"."""
    found = first_out_of_range(idx, shape[0])
    if found is not None:
        index, position = found
        place = f" at position {show_shape(position)}" if position else ""
        rows = shape[0]
        allowed = f"so indices are 0 … {rows - 1}, and negative ones are out of range" if rows else "without a row"
        raise RangeError(
            f"index {index}{place} is out of range: x is {show_shape(shape)}, {allowed}; "
            'pass mode="zero" if an index out of range means zeros',
            op=op,
        )


def require_labels(op: str, shape: tuple[int, ...], labels: Array, *, ignore_index: int) -> None:
    """Require that every label is a class of logits of this shape, or equals `ignore_index`."""
    axis = class_axis(len(shape))
    classes = shape[axis]
    found = first_out_of_range(np.where(labels == ignore_index, 0, labels), classes)
    if found is not None:
        label, position = found
        place = f" at position {show_shape(position)}" if position else ""
        raise RangeError(
            f"label {label}{place} is out of range: logits are {show_shape(shape)} with {classes} classes on "
            f"axis {axis}, so labels are 0 … {classes - 1}, or ignore_index={ignore_index}",
            op=op,
        )


def require_cells(op: str, cells: tuple[int, ...], index: Array) -> None:
    """Require that every index of a pool is a flat position in a plane of this shape."""
    found = first_out_of_range(index, math.prod(cells))
    if found is not None:
        raise RangeError(
            f"index {found[0]} at position {show_shape(found[1])} is out of range: planes are {show_shape(cells)}, so "
            f"indices are 0 … {math.prod(cells) - 1}; they come from max_pool with the same windows",
            op=op,
        )


class NamedRows(NamedTuple):
    """Indices, and the shape of the tensor that they index; `require(op, shape, indices)` raises RangeError."""

    shape: tuple[int, ...]
    indices: Any
    require: Callable[[str, tuple[int, ...], Any], None]


def find_indices(primitive: Primitive, operands: Sequence[Any], static: Static) -> NamedRows | None:
    """Return the indices among a composite's operands, and their check; None if it has none."""
    if primitive in (CROSS_ENTROPY, CROSS_ENTROPY_GRAD):
        logits, labels, *_ = operands
        return NamedRows(logits.shape, labels, partial(require_labels, ignore_index=static["ignore_index"]))
    return None


def require_indices(primitive: Primitive, operands: Sequence[Array], static: Static) -> None:
    """Check a composite's indices, so that errors are about the composite and not its parts."""
    named = find_indices(primitive, operands, static)
    if named is not None:
        named.require(primitive.name, named.shape, named.indices)
