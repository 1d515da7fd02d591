"""Derivatives that a program of ranks takes itself, such as of a penalty on a gradient.

They are taken below the `vary` rule, as those of its loss: so `vary`, and the statistics of a batch, are among the
ops that are differentiated, and what comes back is the derivative that one rank with all rows would take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..ops.errors import MeshError
from ..ops.trees import Structure, flatten, unflatten
from ..transforms.derivatives import aligned, jvp, tangents_of_leaves, vjp
from ..transforms.interpreter import Wrapper, run_closed

if TYPE_CHECKING:
    from .varying import Varying, VaryingRef


def vjp_of_ranks(
    ops: Varying, f: Callable[..., Any], trees: tuple[Any, ...]
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return the value of `f(ops', *trees)` and its pullback, see `derivatives.vjp`.

    What all ranks have alike gets the sum of the ranks' cotangents. Raises MeshError for a scalar that differs between
    ranks: the sum of those of all is none that one rank would take.
    """
    refs, structure = flatten(trees)
    own = [ops.adopt(ref) for ref in refs]
    within = _Within(ops, f, structure, own)
    value, pullback = vjp(ops.inner, within, *[ref.value for ref in own])
    outs = within.outputs(value)
    for out in outs:
        differs = out.axes - out.copied if not out.shape else frozenset()
        for ref in own:
            alike = differs - (ref.axes - ref.copied)
            if alike and ref.dtype.kind in "fO":
                axes = " and ".join(map(repr, sorted(alike)))
                raise MeshError(
                    f"the scalar differs between the ranks of mesh axis {axes}, and its derivative with respect to "
                    "what all of them have would be the sum of all of theirs; make it one number of all ranks first, "
                    "with ops.all_reduce or opstage.derived.all_mean",
                    op="grad",
                    region=ops.cursor.region.name,
                )

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = aligned("cotangent", within.built, cotangent, outs)
        pulled = pullback(unflatten(within.built, [_seed(ops, c, out) for c, out in zip(given, outs)]))
        found: tuple[Any, ...] = unflatten(structure, [_summed(ops, c, ref) for c, ref in zip(pulled, own)])
        return found

    return unflatten(within.built, outs), pull


def jvp_of_ranks(
    ops: Varying, f: Callable[..., Any], trees: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Return value and tangent of `f(ops', *trees)`, see `derivatives.jvp`."""
    refs, structure = flatten(trees)
    adopted = [ops.adopt(ref) for ref in refs]
    given = chain.from_iterable(tangents_of_leaves(unflatten(structure, adopted), tangents))
    moves = [None if t is None else ops.adopt(t) for t in given]
    own = [ref if t is None else ref.over(t.axes) for ref, t in zip(adopted, moves)]
    within = _Within(ops, f, structure, own)
    values = tuple([ref.value for ref in own])
    tuned = tuple([None if t is None else t.over(ref.axes).value for ref, t in zip(own, moves)])
    value, tangent = jvp(ops.inner, within, values, tuned)
    outs = within.outputs(value)
    differs = frozenset[str]().union(*[t.axes - t.copied for t in moves if t is not None])
    moved = [
        None if t is None else type(out)(t, ops, out.axes, copied=out.copied - differs)
        for t, out in zip(_leaves(tangent, within.built), outs)
    ]
    return unflatten(within.built, outs), unflatten(within.built, moved)


class _Within:
    """f on refs of the ranks' values, for an interpreter below the rule.

    built   the structure of its result
    """

    built: Structure

    def __init__(self, ops: Varying, f: Callable[..., Any], structure: Structure, own: Sequence[VaryingRef]):
        self._ops, self._f, self._structure, self._own = ops, f, structure, own
        self._outs: list[VaryingRef] = []

    def __call__(self, inner: Any, *values: Any) -> Any:
        within = self._ops.above(inner)
        refs = [within.holding(value, ref) for value, ref in zip(values, self._own)]
        self._outs, self.built = run_closed(
            within, self._f, *unflatten(self._structure, refs), leaked=Wrapper.misplaced
        )
        return unflatten(self.built, [out.value for out in self._outs])

    def outputs(self, values: Any) -> list[VaryingRef]:
        """Return the values of its result as refs of the outer rule."""
        return [self._ops.holding(value, out) for value, out in zip(_leaves(values, self.built), self._outs)]


def _leaves(tree: Any, structure: Structure) -> list[Any]:
    found: list[Any] = structure.flatten_up_to(tree)
    return found


def _seed(ops: Varying, cotangent: Any, out: VaryingRef) -> Any:
    """Return the cotangent of a result on the underlying interpreter. Ranks with copies share it."""
    if cotangent is None:
        return None
    given = ops.adopt(cotangent)
    more = given.axes - given.copied - out.axes
    if more:
        raise MeshError(
            f"a cotangent differs between the ranks of mesh axis {' and '.join(map(repr, sorted(more)))}, where its "
            "tensor does not",
            op="vjp",
            region=ops.cursor.region.name,
        )
    shared = given.over(out.axes)
    for axis in sorted(out.copied):
        shared = ops.scale(shared, c=1.0 / ops.mesh.size(axis))
    return shared.value


def _summed(ops: Varying, cotangent: Any, ref: VaryingRef) -> Any:
    """Return the cotangent of an argument: for a copy, the sum of those of its ranks."""
    if cotangent is None:
        return None
    found = type(ref)(cotangent, ops, ref.axes)
    for axis in sorted(ref.copied):
        found = ops.all_reduce(found, axis=axis)
    return found
