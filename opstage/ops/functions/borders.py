"""Padding with a tensor's own entries: reflected, repeated or wrapped around."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import Dim, is_zero
from ..errors import nearest
from ..protocol import Ops, R
from ..types import show_shape
from .arrange import flip
from .tools import at_most, dim_of, error, sequence_of

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(ops: Ops[R], x: R, /, *, padding: Sequence[tuple[Dim, Dim]], mode: str = "constant", value: float = 0.0) -> R:
    """x padded before and after the entries of each axis; negative amounts remove entries.

    With two cells on each side, 1 2 3 becomes 3 2 | 1 2 3 | 2 1 for "reflect", 2 1 | 1 2 3 | 3 2 for
    "symmetric", 1 1 | … | 3 3 for "edge", 2 3 | … | 1 2 for "wrap", and `value` for "constant". There can be at
    most n - 1 reflected cells, and n symmetric or wrapped ones. Gradients are summed over copies. PyTorch:
    torch.nn.functional.pad, whose "replicate" is "edge" and whose "circular" is "wrap". NumPy: np.pad.

    Raises:
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    rank = len(x.shape)
    if mode not in MODES:
        raise error(ops, "pad", f"mode must be one of {MODES} but is {mode!r}{nearest(mode, MODES)}")
    entries = [sequence_of(ops, "pad", "a pair", pair) for pair in sequence_of(ops, "pad", "padding", padding)]
    pairs = [tuple(dim_of(ops, "pad", "padding", amount) for amount in pair) for pair in entries]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise error(ops, "pad", f"padding takes a pair (before, after) for each of the {rank} axes but is {padding!r}")
    added: list[tuple[Dim, Dim]] = []
    for axis, (before, after) in enumerate(pairs):
        less = [-amount if isinstance(amount, int) and amount < 0 else 0 for amount in (before, after)]
        if any(less):
            x = ops.slice(x, axis=axis, start=less[0], length=x.shape[axis] - less[0] - less[1])
        added.append((0 if less[0] else before, 0 if less[1] else after))
    if mode == "constant":
        return ops.pad(x, padding=added, value=value)
    for axis, (before, after) in enumerate(added):
        x = _around(ops, x, axis, before, after, mode)
    return x


def _around(ops: Ops[R], x: R, axis: int, before: Dim, after: Dim, mode: str) -> R:
    size = x.shape[axis]
    most = size - 1 if mode == "reflect" else size
    parts = []
    for amount, first in ((before, True), (after, False)):
        if is_zero(amount):
            continue

        def message(amount: Dim = amount) -> str:
            return (
                f"x is {show_shape(x.shape)}: axis {axis} has {size} entries, so mode {mode!r} has at most {most} "
                f"cells to add at an end but {amount} are asked for"
            )

        if mode == "edge":
            at_most(ops, "pad", 1, size, lambda: f"x is {show_shape(x.shape)}: axis {axis} has no edge to repeat")
            end = ops.slice(x, axis=axis, start=0 if first else size - 1, length=1)
            cells = ops.broadcast_to(end, shape=(*x.shape[:axis], amount, *x.shape[axis + 1 :]))
        else:
            at_most(ops, "pad", amount, most, message)
            skipped = 1 if mode == "reflect" else 0
            near_start = first is not (mode == "wrap")
            start = skipped if near_start else size - skipped - amount
            cells = ops.slice(x, axis=axis, start=start, length=amount)
            if mode != "wrap":
                cells = flip(ops, cells, axis=axis)
        parts.append((first, cells))
    before_x = [cells for first, cells in parts if first]
    after_x = [cells for first, cells in parts if not first]
    return ops.concat([*before_x, x, *after_x], axis=axis) if parts else x
