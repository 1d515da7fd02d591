"""Convolutions of sizes that nobody chose, beside their definition: what one layout has alone hides in corners, as
where rows of the kernel meet only padding."""

from __future__ import annotations

import numpy as np
import pytest

from opstage.interpreters.eager_cpu.loops import convolution_choice
from tests.eager_cpu.test_convolution import Case, plans_anew, require_definition, set_budget
from tests.searches import share

_MOST_CELLS = {1: 40, 2: 14, 3: 6}
_BUDGETS = (None, None, 1, 3000)


def drawn(rng: np.random.Generator) -> Case:
    """A case that gives at least one window, often a narrow one: few windows along an axis, much padding."""
    rank = int(rng.choice([1, 2, 2, 2, 3]))

    def along(*choices: int) -> tuple[int, ...]:
        return tuple(rng.choice(choices, rank).tolist())

    kernel = tuple(rng.integers(1, {1: 8, 2: 6, 3: 4}[rank], rank).tolist())
    stride, dilation, padding = along(1, 1, 2, 3, 4), along(1, 1, 2, 3, 5), along(0, 0, 1, 2, 3, 4)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation)]
    more = rng.integers(0, _MOST_CELLS[rank], rank) * rng.integers(0, 2, rank)
    if rng.random() < 0.3:  # depthwise
        groups = int(rng.choice([1, 3, 8, 17, 32]))
        inputs, outputs = groups, groups * int(rng.choice([1, 1, 2]))
    else:
        groups = int(rng.choice([1, 1, 1, 2, 3]))
        inputs, outputs = (groups * int(rng.choice(c)) for c in ([1, 2, 3, 5, 8, 17, 32], [1, 2, 3, 7, 8, 16, 33, 64]))
    cells = tuple(int(a + b) for a, b in zip(least, more))
    return Case(int(rng.choice([1, 2, 3, 5, 9])), inputs, outputs, cells, kernel, stride, padding, dilation, groups)


def search(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_choice, "_WORTH_A_CALL", 0)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        case, budget, dtype = drawn(rng), _BUDGETS[rng.integers(len(_BUDGETS))], str(rng.choice(["float32", "float64"]))
        with monkeypatch.context() as small:
            set_budget(small, budget)
            plans_anew()
            try:
                require_definition(case, dtype)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {dtype}, room {budget}, {case}:{error}") from None
            finally:
                plans_anew()


def test_random_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    search(range(100), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(share(40)))
def test_many_random_ones(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    search(range(1000 + 100 * part, 1100 + 100 * part), monkeypatch)
