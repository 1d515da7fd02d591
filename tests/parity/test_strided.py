"""Operands that are views, transposed in memory or repeated with a stride of 0, give what contiguous ones give."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conformance.harness import EXECUTING, is_float
from tests.parity.compare import DTYPES, assert_equal_outcomes, on_opstage, on_torch, operands
from tests.parity.twin import Arrays, Case, Twin
from tests.parity.twins import TWINS

PER_TWIN = 4


def _is_viewed(x: Any) -> bool:
    return x is not None and not isinstance(x, list) and is_float(x) and np.ndim(x) >= 2 and np.size(x) > 0


def _transposed(case: Case, twin: Twin) -> tuple[Twin, Case]:
    """Operands come with their axes reversed, and the program turns them round."""

    def arrays(rng: Any) -> tuple[Any, ...]:
        return tuple(np.array(np.asarray(x).T) if _is_viewed(x) else x for x in case.arrays(rng))

    def turned(ops: Any, *refs: Any, **static: Any) -> Any:
        return twin.apply(
            ops, *_each(refs, lambda x: ops.permute(x, axes=tuple(reversed(range(len(x.shape)))))), **static
        )

    def turned_in_torch(*tensors: Any, **static: Any) -> Any:
        return twin.torch(*_each(tensors, lambda x: x.permute(*reversed(range(x.ndim)))), **static)

    return _made(twin, case, arrays, turned, turned_in_torch, "transposed", case.terms)


def _repeated(case: Case, twin: Twin) -> tuple[Twin, Case]:
    """Operands come as their first row, and the program repeats it."""
    shapes = [np.shape(x) for x in case.arrays(np.random.default_rng(0)) if _is_viewed(x)]

    def arrays(rng: Any) -> tuple[Any, ...]:
        return tuple(np.array(x[:1]) if _is_viewed(x) else x for x in case.arrays(rng))

    def spread(ops: Any, *refs: Any, **static: Any) -> Any:
        given = iter(shapes)
        return twin.apply(ops, *_each(refs, lambda x: ops.broadcast_to(x, shape=next(given))), **static)

    def spread_in_torch(*tensors: Any, **static: Any) -> Any:
        given = iter(shapes)
        return twin.torch(*_each(tensors, lambda x: x.expand(next(given))), **static)

    terms = case.terms * max(shape[0] for shape in shapes)
    return _made(twin, case, arrays, spread, spread_in_torch, "repeated", terms)


def _each(operands: tuple[Any, ...], view: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The same operands that `_is_viewed`, as refs or tensors."""

    def viewed(x: Any) -> Any:
        whole = x is not None and not isinstance(x, list) and str(x.dtype).removeprefix("torch.").startswith("float")
        return view(x) if whole and len(x.shape) >= 2 and 0 not in x.shape else x

    return tuple(viewed(x) for x in operands)


def _made(twin: Twin, case: Case, arrays: Arrays, call: Any, torch: Any, how: str, terms: int) -> tuple[Twin, Case]:
    return Twin(twin.op, torch, (), call, twin.gradient), Case(f"{case.name} {how}", arrays, case.static, terms)


def _made_of(view: Callable[[Case, Twin], tuple[Twin, Case]], keep: Callable[[Twin], bool]) -> list[tuple[Twin, Case]]:
    found = []
    for twin in filter(keep, TWINS):
        usable = (c for c in twin.cases if not c.edge and any(map(_is_viewed, c.arrays(np.random.default_rng(0)))))
        found += [view(case, twin) for case in itertools.islice(usable, PER_TWIN)]
    return found


# Not for what divides by a variance, which equal rows lack, nor with attention weights, which would be of other rows.
# Equal rows make a matrix that no equation is solved by, and ties, of which PyTorch's gradient takes any one.
_ROWS_DIFFER = (
    "norm",
    "max_pool_gather",
    "muon",
    "attention_grad",
    "solve",
    "cholesky",
    "eigh",
    "qr",
    "svd",
    "cofactor",
    "inverse",
    "median",
    "top_k",
)
VIEWS = [
    *_made_of(_transposed, lambda twin: True),
    *_made_of(_repeated, lambda twin: not any(part in twin.op for part in _ROWS_DIFFER)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("twin, case", VIEWS, ids=[f"{twin.op}-{case.name}" for twin, case in VIEWS])
def test_views_agree_with_pytorch(twin: Twin, case: Case, dtype: str) -> None:
    args = operands(twin, case, dtype)
    expected, seeds = on_torch(twin, case, args, dtype)
    for interpreter in EXECUTING:
        assert_equal_outcomes(on_opstage(interpreter, twin, case, args, seeds, dtype), expected, case, dtype)
