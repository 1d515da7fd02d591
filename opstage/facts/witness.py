"""A claim refuted by running the program: inputs moved at one index, in float64, and what moves with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..analysis.dependence.regions import equal_proved
from ..analysis.ranges import ends_of
from ..interpreters.registry import make_interpreter
from ..interpreters.shape_check.program import CheckedProgram
from ..interpreters.shape_check.report import Assumption, allowed_sizes, program_at
from ..ops.body import Body, Equation
from ..ops.dims import Dim, DimExpr
from ..ops.dims.relation import claim_of
from ..ops.errors import OpstageError
from ..ops.spec import AlongAxis
from ..ops.types import FLOAT32, FLOAT64, TensorType
from ..options import Options
from ..transforms.tracer import constants, evaluate

_SIZES = (4, 5, 3, 6, 8, 2, 12, 16, 32, 1)
_MOST_ELEMENTS = 20_000_000
_ATTEMPTS = 3
_AGAIN = 3  # runs of the same, to tell apart what memory's alignment moves by a bit

Array = npt.NDArray[Any]
Ends: TypeAlias = tuple[float, float]
"""Between which numbers an input is."""


@final
class TooLarge(Exception):
    """The program has more elements than are run for a claim."""


class Found(NamedTuple):
    """In a run at `sizes` the outputs at `target` moved with the inputs at `source`."""

    target: int
    source: int
    sizes: tuple[tuple[str, int], ...]


class Runs:
    """A program at small sizes, ready to be run."""

    def __init__(self, program: CheckedProgram, sizes: Mapping[str, int], ends: Sequence[Ends]):
        self.named = program.body
        self.names = program.names
        self.ends = ends
        self.sizes = dict(sizes)
        self.body = _in_float64(program_at(program, sizes).body)
        if sum([_count(type_) for type_ in self.body.input_types]) > _MOST_ELEMENTS:
            raise TooLarge
        self._ops = make_interpreter(Options(dtype="float64"))
        self._held = constants(self._ops, self.body)

    def outputs(self, values: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        refs = [self._ops.const(value, dtype=value.dtype) for value in values]
        with np.errstate(all="ignore"):
            found = evaluate(self._ops, self.body, refs, self._held)
        return [np.array(self._ops.get(ref)) for ref in found]

    def inputs(self, attempt: int) -> list[Array]:
        """Return inputs: normal floats; in further attempts positive ones, and small ones with positive vectors, as
        scales and variances are. Integers are 0 or 1, valid as indices. Inputs with bounds are uniform there."""
        rng = np.random.default_rng(attempt)
        found: list[Array] = []
        for name, type_, (low, high) in zip(self.names, self.body.input_types, self.ends):
            shape: Any = type_.shape
            if type_.dtype.kind != "f":
                least = int(max(low, 0.0))
                most = min(least + 1, high) if name else least
                found.append(rng.integers(least, int(most) + 1, size=shape).astype(type_.dtype))
            elif math.isfinite(high - low):
                found.append(np.asarray(rng.uniform(low, high, size=shape)))
            elif low > -math.inf or high < math.inf:
                away = np.abs(rng.normal(size=shape))
                found.append(np.asarray(low + away if low > -math.inf else high - away))
            elif attempt == 1 or (attempt == 2 and len(shape) < 2):
                found.append(np.asarray(rng.uniform(0.5, 1.5, size=shape)))
            else:
                found.append(np.asarray(rng.normal(size=shape) * (0.1 if attempt == 2 else 1.0)))
        return found

    def moved(self, first: Sequence[Array], again: Sequence[Sequence[Array]], values: Sequence[Array]) -> list[Array]:
        """Which elements of the outputs are others for these inputs, and not only in another run of the same."""
        found: list[Array] = []
        for i, (before, after) in enumerate(zip(first, self.outputs(values))):
            steady = np.ones(before.shape, bool)
            for other in again:
                steady &= _alike(before, other[i])
            found.append(~_alike(before, after) & steady)
        return found


def runs_of(
    program: CheckedProgram, conditions: Sequence[Assumption], dim: str | None, bounds: Mapping[str, Ends] | None = None
) -> Iterator[Runs]:
    """The program at a few allowed sizes, at which the dim has several indices where it may; `bounds` are those of
    `ranges_of`, which inputs keep."""
    ends = [ends_of(name, bounds or {}, program.ranges) for name in program.names]
    names, given = program.scope.names, 0
    for sizes in _candidates(program, names, dim):
        try:
            found = allowed_sizes(program.scope, conditions, sizes, names)
        except OpstageError:
            continue
        yield Runs(program, found, ends)
        given += 1
        if given == 2:
            return


def _candidates(program: CheckedProgram, names: Sequence[str], dim: str | None) -> Iterator[dict[str, int]]:
    for size in _SIZES:
        yield dict.fromkeys(names, size)
    for size in _SIZES:
        for other in _SIZES:
            yield {name: size if name == dim else other for name in names}
    if dim is not None:
        size_of = program.scope.dim(dim)
        at_least_two = claim_of({(): 2}, "<=", size_of.polynomial)
        known = program.scope.witness(at_least_two, wanted=True) or {}
        for other in _SIZES:
            yield {name: known.get(name, other) for name in names}


def breach(runs: Runs, claim: AlongAxis, sources: Sequence[int], axis: Dim) -> Found | None:
    """Indices that a run shows to break a claim; `sources` are the inputs, by number, that are moved."""
    places = {i: _axes(runs.named.types[runs.named.inputs[i]].shape, axis) for i in sources}
    places = {i: at for i, at in places.items() if at}
    targets = [_axes(runs.named.types[slot].shape, axis) for slot in runs.named.outputs]
    count = runs.sizes[claim.axis]
    for attempt in range(_ATTEMPTS):
        values = runs.inputs(attempt)
        first = runs.outputs(values)
        again = [runs.outputs([value.copy() for value in values]) for _ in range(_AGAIN)]
        for source in range(count):
            changed = list(values)
            for i, at in places.items():
                changed[i] = _changed(values[i], at, source, runs.ends[i], attempt)
            for moved, at in zip(runs.moved(first, again, changed), targets):
                if len(at) != 1:  # an output of two such axes has no one index
                    continue
                along = moved.any(axis=tuple([other for other in range(moved.ndim) if other != at[0]]))
                for target in np.nonzero(along)[0]:
                    if claim.breaks(source, int(target)):
                        return Found(int(target), source, tuple(runs.sizes.items()))
    return None


def reads(runs: Runs, inputs: Sequence[int]) -> bool:
    """Whether an output moves with these inputs, all of them moved."""
    for attempt in range(_ATTEMPTS):
        values = runs.inputs(attempt)
        first = runs.outputs(values)
        again = [runs.outputs([value.copy() for value in values]) for _ in range(_AGAIN)]
        changed = list(values)
        for i in inputs:
            changed[i] = _other(values[i], runs.ends[i], attempt)
        if any(moved.any() for moved in runs.moved(first, again, changed)):
            return True
    return False


def _changed(value: Array, axes: Sequence[int], index: int, ends: Ends, attempt: int) -> Array:
    """The array with other elements at an index of these axes."""
    new = value.copy()
    for axis in axes:
        part = np.moveaxis(new, axis, 0)[index : index + 1]
        part[...] = _other(part, ends, attempt)
    return new


def _other(value: Array, ends: Ends, attempt: int) -> Array:
    """Other numbers, between the same bounds; in further attempts in another order, on which choices go."""
    low, high = ends
    if value.dtype.kind != "f":
        least = int(max(low, 0.0))
        return np.asarray(np.minimum(2 * least + 1 - value, min(high, 2.0**31))).astype(value.dtype)
    turn = np.cos(np.arange(value.size)).reshape(value.shape)
    move = 0.7 + 0.1 * turn if attempt == 0 else turn + np.copysign(0.1, turn)
    if math.isfinite(high - low):  # so far along the interval, and round to its beginning
        return np.asarray(low + (value - low + move * (high - low)) % (high - low) if high > low else value)
    if low > -math.inf or high < math.inf:
        move = np.abs(move)
    return np.asarray(value - move if high < math.inf else value + move)


def _alike(a: Array, b: Array) -> Array:
    """Which elements are the same; a zero has no sign, and one nan is as good as another."""
    same = a == b
    return np.asarray(same | ((a != a) & (b != b)))


def _axes(shape: Sequence[Dim], dim: Dim) -> list[int]:
    """The axes whose size is a named dim, or is proved to be."""
    return [axis for axis, size in enumerate(shape) if isinstance(size, DimExpr) and equal_proved(size, dim)]


def _count(type_: TensorType) -> int:
    return int(np.prod([int(size) for size in type_.shape], dtype=np.int64))


def _in_float64(body: Body) -> Body:
    """The same program of float64 in place of float32."""

    def type_of(type_: TensorType) -> TensorType:
        return TensorType(type_.shape, FLOAT64) if type_.dtype == FLOAT32 else type_

    def equation_of(equation: Equation) -> Equation:
        static = {name: value_of(name, value) for name, value in equation.static.items()}
        return equation._replace(static=static)

    def value_of(name: str, value: Any) -> Any:
        if isinstance(value, Body):
            return _in_float64(value)
        return "float64" if name == "dtype" and value == "float32" else value

    return body.replace(
        types=[type_of(type_) for type_ in body.types],
        constants=[
            c._replace(value=c.value.astype(np.float64), type=type_of(c.type)) if c.type.dtype == FLOAT32 else c
            for c in body.constants
        ],
        equations=[equation_of(e) if e.static else e for e in body.equations],
    )
