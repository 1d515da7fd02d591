"""Numeric sizes for the named dims of Specs: their names, the allowed values, and the largest that passes a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from ..ops.dims import DimExpr, DimScope, evaluate
from ..ops.errors import UsageError
from ..ops.spec import Spec, sized
from ..ops.types import TensorType

MOST = 1 << 40
"""The upper limit of searches for a size."""

_SAMPLES = (32, 16, 8, 64, 4, 128, 2, 256, 1, 1024, 4096)
_IN_A_ROW = 4096  # sizes that are tried for one that satisfies a constraint such as B % 8 == 0


def dim_names(specs: Iterable[Spec]) -> tuple[str, ...]:
    """Return the named dims of Specs, in order of appearance."""
    scope = DimScope()
    for spec in specs:
        for entry in spec.entries:
            scope.parse(str(entry))
    return scope.names


def sample_sizes(specs: Sequence[Spec], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return moderate sizes that the constraints allow for the names without one in `sizes`.

    Raises UsageError if none are found, and for sizes that the Specs do not have or allow.
    """
    specs = sized(tuple(specs), sizes, "the step")
    free = dim_names(specs)
    for chosen in product(_SAMPLES, repeat=len(free)):
        found = dict(zip(free, chosen))
        if allowed(specs, found):
            return found
    raise UsageError(f"sizes were not found for {', '.join(free)} that the constraints allow; give a number for some")


def in_numbers(types: Sequence[TensorType]) -> Sequence[TensorType]:
    """Return the types at moderate sizes that the constraints of their named dims allow; numeric types stay as they
    are.

    Raises UsageError if no such sizes are found.
    """
    scope = next((d.scope for type_ in types for d in type_.shape if isinstance(d, DimExpr)), None)
    if scope is None:
        return types
    found = dict.fromkeys(scope.names, _SAMPLES[2])
    for fact in scope.facts:  # a witness has the sizes of all names that the facts relate
        found |= scope.witness(fact.claim, wanted=True) or {}
    if not all(fact.holds(found) for fact in scope.facts):
        raise UsageError(f"sizes were not found for {', '.join(found)} that the constraints allow; give some numbers")
    return [TensorType(evaluate(type_.shape, found), type_.dtype) for type_ in types]


def near(specs: Sequence[Spec], sizes: Mapping[str, int], sample: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes slightly above a `sample` that the constraints allow, enough to fit quadratic polynomials in two."""
    held = [spec for spec in sized(tuple(specs), sizes) if spec.where]
    names = dim_names(held)

    def hold(found: Mapping[str, int]) -> bool:
        return not held or allowed(held, {name: found[name] for name in names})

    def step(name: str) -> int:
        return next((n for n in range(1, _IN_A_ROW) if hold({**sample, name: sample[name] + n})), 1)

    steps = {name: step(name) for name in sample}
    offsets = sorted(product(range(3), repeat=len(steps)), key=sum)[1 : _NEAR + 1]
    found = [{name: sample[name] + n * steps[name] for n, name in zip(offset, steps)} for offset in offsets]
    return [each for each in found if hold(each)]


_NEAR = 5


def allowed(specs: Sequence[Spec], sizes: Mapping[str, int]) -> bool:
    """Return whether the constraints hold at these sizes."""
    try:
        sized(tuple(specs), sizes)
    except UsageError:
        return False
    return True


def largest(specs: Sequence[Spec], sizes: Mapping[str, int], name: str, fits: Callable[[int], bool], guess: int) -> int:
    """Return the largest size of `name` that fits and that the constraints allow, or 0.

    `fits` must hold up to some size and for none above. It is called with allowed sizes only, starting near `guess`.
    """
    left = sized(tuple(specs), sizes)
    bounds, others = _Constraints(left, name, bounds=True), _Constraints(left, name, bounds=False)

    def at_most(size: int) -> int:
        return next(filter(others.hold, range(size, max(0, size - _IN_A_ROW), -1)), 0)

    def some_fits(size: int) -> bool:
        found = at_most(size)
        return found >= first and fits(found)

    first = next((n for n in range(1, _IN_A_ROW) if bounds.hold(n) and others.hold(n)), 1)
    last = around(first, MOST, bounds.hold)
    found = at_most(around(max(first, guess), last, some_fits))
    return found if found >= first else 0


class _Constraints:
    """The constraints of one name: either its bounds, or equalities such as B % 8 == 0."""

    def __init__(self, specs: Sequence[Spec], name: str, *, bounds: bool):
        kept = [Spec(s.shape, s.dtype, [c for c in s.where if ("==" in c) is not bounds]) for s in specs]
        self._specs = tuple(spec for spec in kept if spec.where)
        self._name = name

    def hold(self, size: int) -> bool:
        """Return whether they hold at this size."""
        return not self._specs or allowed(self._specs, {self._name: size})


def around(guess: int, bound: int, fits: Callable[[int], bool]) -> int:
    """Return the last size up to `bound` that fits, or 0, starting from `guess`: two calls if that is right."""
    guess, step = max(1, min(guess, bound)), 1
    if fits(guess):
        low, high = guess, bound + 1
        while low + step < high:
            low, high = (low + step, high) if fits(low + step) else (low, low + step)
            step *= 2
    else:
        low, high = 0, guess
        while low < high - step:
            low, high = (high - step, high) if fits(high - step) else (low, high - step)
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
