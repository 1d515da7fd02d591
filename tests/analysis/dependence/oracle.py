"""Dependence held against runs: an element moves with a source only where its fact lets it read it, and is the number
that its fact says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opstage import Options
from opstage.analysis.dependence import Dependence, Fact
from opstage.analysis.dependence.fact import Affine, Between, Columns, Span, hull, plain, reading
from opstage.facts import Interpretation
from opstage.interpreters.registry import make_interpreter
from opstage.ops.body import Body
from opstage.ops.dims import evaluate as at
from opstage.transforms.tracer import constants, evaluate

FLOAT64 = Options(dtype="float64", fast_kernels=False)
"""What is proved holds for any kernels, so none are compiled."""


def run(body: Body, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a body, computed eagerly in float64."""
    ops = make_interpreter(FLOAT64)
    refs = [ops.const(a, dtype=a.dtype) for a in arrays]
    with np.errstate(all="ignore"):
        return [np.asarray(ops.get(ref)) for ref in evaluate(ops, body, refs, constants(ops, body))]


def grids(fact: Fact, shape: Sequence[int], sizes: Mapping[str, int]) -> list[Any]:
    """The value of each index at every element, ready to broadcast."""
    found: list[Any] = []
    for axis, (cut, length) in enumerate(zip(fact.axes, shape)):
        factors = [at(size, sizes) for size in cut]
        assert int(np.prod(factors)) == length, (fact, shape)
        view = [1] * len(shape)
        view[axis] = length
        for i in range(len(factors)):
            behind = int(np.prod(factors[i + 1 :]))
            index = np.arange(length) // max(behind, 1) % max(factors[i], 1)
            found.append(index.reshape(view))
    return found


def inside(region: Any, indices: Sequence[Any], shape: Sequence[int], sizes: Mapping[str, int]) -> Any:
    """Which elements a region has."""
    found = np.zeros(shape, bool)
    for part in region:
        holds = np.ones(shape, bool)
        for a, b, c in part:
            holds &= (indices[a] if a >= 0 else 0) - (indices[b] if b >= 0 else 0) <= at(c, sizes)
        found |= holds
    return found


def permitted(fact: Fact, shape: Sequence[int], sources: int, sizes: Mapping[str, int]) -> Any:
    """Which elements may read which sources, a boolean for each along a last axis."""
    indices = grids(fact, shape, sizes)
    found = np.full((*shape, sources), fact.whole)
    s = np.arange(sources)
    for index, (by, low, high) in fact.reads:
        distance = s - by * (indices[index][..., None] if index >= 0 else 0)
        holds = np.ones(np.broadcast_shapes(distance.shape, (1,)), bool)
        if low is not None:
            holds = holds & (distance >= at(low, sizes))
        if high is not None:
            holds = holds & (distance <= at(high, sizes))
        found = found | holds
    for _, region in fact.outside:
        found = found & inside(region, indices, shape, sizes)[..., None]
    return found


def alike(a: Any, b: Any) -> Any:
    """Which elements are the same, whatever the sign of a zero and the bits of a nan."""
    return (a == b) | ((a != a) & (b != b))


def wrong_numbers(fact: Fact, array: Any, sizes: Mapping[str, int]) -> bool:
    """Whether an element is another number than its fact says."""
    indices = grids(fact, array.shape, sizes)
    if array.dtype == np.float32:  # else numbers would be rounded to it before they are compared
        array = array.astype(np.float64)
    for value, region in fact.outside:
        if not (alike(array, value) | inside(region, indices, array.shape, sizes)).all():
            return True

    def of(value: Affine) -> Any:
        expected = at(value.constant, sizes) + sum([at(c, sizes) * indices[i] for i, c in value.terms])
        return abs(expected) if value.absolute else expected

    if isinstance(fact.value, Between):
        return not ((of(fact.value.low) <= array) & (array <= of(fact.value.high))).all()
    if isinstance(fact.value, Affine):
        return not (array == of(fact.value)).all()
    if isinstance(fact.value, Columns):
        along = indices[fact.value.along]
        return not all(((array == of(v)) | (along != place)).all() for place, v in enumerate(fact.value.values))
    return False


def moved(array: Any, axis: int, s: int, rng: np.random.Generator) -> Any:
    """The array with other elements at index s of an axis."""
    new = array.copy()
    part = np.moveaxis(new, axis, 0)[s : s + 1]
    if array.dtype.kind == "f":
        part += rng.uniform(0.5, 1.5, part.shape) * rng.choice([-1, 1], part.shape)
    elif array.dtype.kind == "b":
        np.logical_not(part, out=part)
    else:
        part[...] = np.where(part == array.max(), array.min(), array.max())  # an index stays in its range
    return new


def violations(
    body: Body,
    arrays: Sequence[Any],
    *,
    operand: int | None = None,
    axis: int = 0,
    named: Sequence[tuple[int, int]] = (),
    types: Body | None = None,
    sizes: Mapping[str, int] | None = None,
    dim: Any = None,
    seed: int = 0,
    unconditional: bool = False,
) -> list[str]:
    """Wrong facts about the outputs of a body at these arrays.

    Sources are the indices along `axis` of one `operand`, or along all axes `named` (operand, axis), those of `dim`.
    With `unconditional` nothing is said of facts that take something for granted of values.
    """
    sizes = sizes or {}
    domain = Dependence(dim, [str(i) for i in range(len(arrays))])
    sources = []
    for i, slot in enumerate(body.inputs):
        type_ = (types or body).types[slot]
        fact = domain.source(str(i), type_) if dim is not None else plain(type_.shape)._replace(inputs=1 << i)
        if i == operand:
            fact = reading(fact, hull([(fact.at(axis), Span(1, 0, 0))]))
        sources.append((fact,))
    facts = Interpretation([domain]).run(types or body, sources)
    if unconditional and domain.assumptions:
        return []
    first = run(body, arrays)
    rng = np.random.default_rng(seed)
    places = list(named) if operand is None else [(operand, axis)]
    count = arrays[places[0][0]].shape[places[0][1]] if places else 0
    found = []
    outs = [(facts[slot][0], array) for slot, array in zip((types or body).outputs, first)]
    for number, (fact, array) in enumerate(outs):
        if wrong_numbers(fact, array, sizes):
            found.append(f"output {number} is not the number that is said of it: {fact}")
    allowed = [permitted(fact, array.shape, count, sizes) for fact, array in outs]
    for s in range(count):
        changed = list(arrays)
        for i, a in places:
            changed[i] = moved(changed[i], a, s, rng)
        try:
            after = run(body, changed)
        except Exception:  # the op refuses these operands: nothing is computed, so nothing read
            continue
        for number, (array, new, may) in enumerate(zip(first, after, allowed)):
            leaks = ~alike(array, new) & ~may[..., s]
            for _ in range(3 if leaks.any() else 0):
                # Where memory lies may change how a product adds up: what another run of the same moves says nothing.
                leaks &= alike(array, run(body, [each.copy() for each in arrays])[number])
            if leaks.any():
                where = tuple(int(i[0]) for i in np.nonzero(leaks)) if array.ndim else ()
                found.append(f"output {number} at {where} reads {s}: {outs[number][0]}")
    return found
