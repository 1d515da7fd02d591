"""Claims of programs as people write them: proved where they are true, refuted where they are not, seldom undecided.

None is proved where a run shows the leak, and none refuted where none does: each program is run besides, in float64, at
sizes and inputs of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.facts import ClaimVerdict
from tests.analysis.dependence.oracle import moved
from tests.facts.batches import BATCHES
from tests.facts.decoders import DECODERS, Program, Twins
from tests.facts.recurrences import RECURRENCES
from tests.facts.sequence_programs import SEQUENCES
from tests.facts.streams import STREAMS

SIZE = 8
HELD_OUT: dict[str, Twins] = {
    f"{where}: {name}": twins
    for where, table in (
        ("decoders", DECODERS),
        ("recurrences", RECURRENCES),
        ("sequences", SEQUENCES),
        ("streams", STREAMS),
        ("batches", BATCHES),
    )
    for name, twins in table.items()
}
UNDECIDED = {
    "recurrences: a roll": "a shift and a place that wraps around are one read, and no mask takes one of them out",
    "recurrences: a running maximum": "its places are found by a loop, and not known to be before it",
    "sequences: blocks by a reshape": "a read goes by one index, and a place has two here",
    "streams: every second place": "a read goes by one index, and a place has two here",
    "streams: every second place, repeated": "a read goes by one index, and a place has two here",
}
"""True claims that are not proved, and what is missing."""


def verdict(program: Program, twins: Twins) -> ClaimVerdict:
    report = opstage.check(program, *twins.specs, train=False, claims=[twins.claim])
    assert len(report.claims) == 1 and "the program has errors" not in report.claims[0].reason, report
    return report.claims[0]


@pytest.mark.parametrize("name", HELD_OUT)
def test_what_is_right_is_proved(name: str) -> None:
    twins = HELD_OUT[name]
    found = verdict(twins.right, twins)
    assert found.state == ("undecided" if name in UNDECIDED else "proved"), found
    assert not breaches(twins.right, twins)


@pytest.mark.parametrize("name", HELD_OUT)
def test_what_leaks_is_refuted_by_two_places(name: str) -> None:
    twins = HELD_OUT[name]
    found = verdict(twins.leaky, twins)
    assert found.state == "refuted", found
    assert found.witness is not None
    target, source = found.witness
    assert found.claim.breaks(source, target)  # type: ignore[union-attr]
    assert breaches(twins.leaky, twins)


def test_few_are_undecided() -> None:
    assert len(UNDECIDED) <= 0.1 * len(HELD_OUT)


def breaches(program: Program, twins: Twins) -> set[tuple[int, int]]:
    """The places (target, source) that runs in float32 show to break the claim."""
    report = opstage.check(program, *twins.specs, train=False, claims=[twins.claim])
    claim: Any = report.claims[0].claim
    (out,) = report.program.body.output_types
    (along,) = [i for i, size in enumerate(out.shape) if claim.axis in str(size)]
    rng = np.random.default_rng(7)
    arrays = [_drawn(spec, rng) for spec in twins.specs]
    first = np.asarray(opstage.run(program, *arrays))
    found: set[tuple[int, int]] = set()
    for source in range(SIZE):
        changed = list(arrays)
        for i, spec in enumerate(twins.specs):
            if claim.axis in spec.entries:
                changed[i] = moved(arrays[i], spec.entries.index(claim.axis), source, rng)
        after = np.asarray(opstage.run(program, *changed))
        far = np.abs(first - after) > 1e-4 * (1 + np.abs(first))
        others = tuple([i for i in range(first.ndim) if i != along])
        found |= {(int(t), source) for t in np.nonzero(far.any(axis=others))[0] if claim.breaks(source, int(t))}
    return found


def _drawn(spec: Spec, rng: np.random.Generator) -> Any:
    """Numbers of a Spec, its names of one size."""
    shape = [size if isinstance(size, int) else SIZE for size in spec.entries]
    low, high = spec.range or (-1, 1)
    if spec.dtype in ("int64", "bool"):
        return rng.integers(int(max(low, 0)), int(high) + 1, shape).astype(spec.dtype)
    return rng.uniform(low, high, shape).astype("float32")
