"""Numbers for the named dims of Specs: which there are, which are allowed, and the largest that passes a test."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from ..ops.dims import Dim, DimScope
from ..ops.dims.notation import parse_expression, parse_relations
from ..ops.errors import UsageError, nearest
from ..ops.spec import Spec
from ..ops.types import DType, TensorType

_RELATIONS = {"==": operator.eq, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
_SAMPLES = (32, 16, 8, 64, 4, 128, 2, 256, 1)
MOST = 1 << 40  # a size beyond which none is looked for
_MULTIPLES = 4096  # sizes in a row that are tried for one that satisfies a constraint such as B % 8 == 0


def bound_types(specs: Iterable[Spec], sizes: Mapping[str, int], scope: DimScope, dtype: DType) -> list[TensorType]:
    """The types that Specs stand for, with numbers put in for the names that have one; the others are dims of `scope`.

    Floats take `dtype`. Constraints that are of such dims alone are declared.
    """

    def size(name: str) -> Dim:
        return sizes[name] if name in sizes else scope.dim(name)

    types = []
    for spec in specs:
        entries = spec.shape.split() if isinstance(spec.shape, str) else map(str, spec.shape)
        shape = tuple(parse_expression(entry, size) for entry in entries)
        types.append(Spec(shape, spec.dtype).bind(scope, dtype))
    for constraint in _constraints(specs):
        named = DimScope()
        parse_relations(constraint, named.dim)
        if set(named.names) <= set(scope.names):
            scope.declare(constraint)
    return types


def _constraints(specs: Iterable[Spec]) -> Iterable[str]:
    """What the Specs declare, each text once."""
    return dict.fromkeys(constraint for spec in specs for constraint in spec.where)


def dim_names(specs: Iterable[Spec]) -> tuple[str, ...]:
    """The named dims of Specs, in the order in which they come."""
    scope = DimScope()
    for spec in specs:
        for entry in spec.shape.split() if isinstance(spec.shape, str) else map(str, spec.shape):
            scope.parse(entry)
    return scope.names


def require_sizes(specs: Sequence[Spec], sizes: Mapping[str, int], *, complete: bool = True) -> None:
    """Raise UsageError for sizes that the Specs do not know or allow and, if they are to be `complete`, for missing
    ones."""
    names = dim_names(specs)
    known = ", ".join(names) or "none"
    for name, size in sizes.items():
        if name not in names:
            raise UsageError(f"there is no size {name!r}{nearest(name, names)}; the Specs have {known}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(f"a size is a whole number that is at least 0, but {name} is {size!r}")
    missing = [name for name in names if name not in sizes]
    if missing and complete:
        raise UsageError(f"give a number for {', '.join(missing)}; the Specs have {known}")
    broken = _broken(specs, sizes)
    if broken is not None:
        at = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(f"the Specs do not allow {at}: {broken} does not hold")


def _broken(specs: Iterable[Spec], sizes: Mapping[str, int], kinds: str = "== <= < >= >") -> str | None:
    """The first constraint, of those whose names all have sizes, that does not hold."""
    for constraint in _constraints(specs):
        scope = DimScope()
        for left, relation, right in parse_relations(constraint, lambda n: sizes[n] if n in sizes else scope.dim(n)):
            known = isinstance(left, int) and isinstance(right, int) and relation in kinds.split()
            if known and not _RELATIONS[relation](left, right):
                return constraint
    return None


def sample_sizes(specs: Sequence[Spec], sizes: Mapping[str, int]) -> dict[str, int]:
    """Moderate sizes that the constraints allow for the names that have none in `sizes`.

    Raises UsageError where none are found.
    """
    free = [name for name in dim_names(specs) if name not in sizes]
    for chosen in product(_SAMPLES, repeat=len(free)):
        found = dict(zip(free, chosen))
        if _broken(specs, {**sizes, **found}) is None:
            return found
    raise UsageError(f"no sizes were found for {', '.join(free)} that the constraints allow; give a number for some")


def largest(specs: Sequence[Spec], sizes: Mapping[str, int], name: str, fits: Callable[[int], bool], guess: int) -> int:
    """The largest size of `name` that fits and that the constraints allow; 0 if none does.

    `fits` holds up to some size and for none beyond; it is asked of no size that the inequalities exclude.
    """
    bound = around(1, MOST, lambda n: _broken(specs, {**sizes, name: n}, "<= <") is None)
    most = around(guess, bound, fits)
    for size in range(most, max(0, most - _MULTIPLES), -1):
        if _broken(specs, {**sizes, name: size}) is None:
            return size
    return 0


def around(guess: int, bound: int, fits: Callable[[int], bool]) -> int:
    """The last size up to `bound` that fits, looked for from `guess` on: two questions if that is right; 0 if none."""
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
