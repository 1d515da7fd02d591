"""Phases of relus: bounds of a region hold in it whatever slopes and prices are; verdicts are those of enumeration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import opstage
from opstage import Box, Options
from opstage.analysis.relaxations import region_bounds
from opstage.analysis.relaxations import unary as unary
from opstage.analysis.relaxations.interpreter import PhaseArrays
from opstage.ops.errors import UsageError
from opstage.verification.branch_and_bound import Verification, verify
from opstage.verification.regions import RegionBounds, Regions
from opstage.verification.vnnlib import UnsafeCase, VnnProperty
from tests.searches import some


def layers(sizes: list[int], seed: Any) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        ((rng.standard_normal((b, a)) * np.sqrt(1.6 / a)).astype("f4"), (rng.standard_normal(b) * 0.1).astype("f4"))
        for a, b in pairwise(sizes)
    ]


def network(ops: Any, params: Any, x: Any) -> Any:
    for weight, bias in params[:-1]:
        x = ops.relu(ops.linear(weight, bias, x))
    return ops.linear(*params[-1], x)


def operands_and_outputs(params: Any, x: Any) -> tuple[Any, Any]:
    """In float64: what relus read, side by side, and the outputs."""
    found = []
    for weight, bias in params[:-1]:
        found.append(x @ weight.T.astype("f8") + bias)
        x = np.maximum(found[-1], 0)
    return np.concatenate(found, axis=1), x @ params[-1][0].T.astype("f8") + params[-1][1]


SIZES = [3, 6, 5, 2]


def outside_of_regions(slopes: float, count: int = 300) -> float:
    """How far outputs of points go below the bounds of a region that they are in; regions are those of other points."""
    rng = np.random.default_rng(0)
    params, lower, upper = layers(SIZES, 1), np.full(3, -1, "f4"), np.full(3, 1, "f4")
    points = rng.uniform(-1, 1, (6000, 3)).astype("f4")
    z, y = operands_and_outputs(params, points)
    # of each the phases of some elements, so that points fall into its region
    signs = np.sign(z[rng.integers(0, len(z), count)]) * (rng.random((count, z.shape[1])) < 0.25)
    region = Regions(
        np.repeat(lower[None], count, 0).astype("f8"),
        np.repeat(upper[None], count, 0).astype("f8"),
        signs.astype("f4"),
        *[np.full(signs.shape, value, "f4") for value in (-np.inf, np.inf)],
        rng.uniform(-slopes, slopes, signs.shape).astype("f4"),
        (rng.random(signs.shape) * (rng.random((count, 1)) < 0.7)).astype("f4"),
    )
    _, known = RegionBounds(network, params, 3).bound(np.eye(2, dtype="f4"), region, Options())

    def bounded(ops: Any, params: Any, x: Any, *arrays: Any) -> Any:
        return region_bounds(ops, network, PhaseArrays(*arrays), count, params, x)[0]

    box = Box(region.lower.astype("f4"), region.upper.astype("f4"))
    arrays = (region.sign, known.least, known.most, region.slope, region.price)
    found = opstage.run(bounded, params, box, *arrays)
    worst = 0.0
    for i in range(count):
        inside = ((z * signs[i]) >= 0).all(axis=1)
        assert inside.any()
        worst = max(worst, float((found.lower[i] - y[inside]).max()), float((y[inside] - found.upper[i]).max()))
        worst = max(worst, float((known.least[i] - z[inside]).max()), float((z[inside] - known.most[i]).max()))
    return worst


def test_bounds_of_a_region_hold_in_it_whatever_slopes_and_prices_are() -> None:
    assert outside_of_regions(2.0) == 0


def test_a_region_that_is_empty_is_known_to_be() -> None:
    bounds = RegionBounds(lambda ops, params, x: ops.relu(x), [], 1)
    whole = Regions.whole(np.array([1.0]), np.array([2.0]), 1)
    found, _ = bounds.bound(np.ones((1, 1), "f4"), whole.by_phase(np.array([0])), Options())
    assert np.isinf(found[:, 0]).tolist() == [False, True]


def test_a_network_that_mixes_rows_has_no_regions() -> None:
    mixed: Callable[..., Any] = lambda ops, params, x: ops.relu(ops.add(x, ops.permute(x, axes=(1, 0))))  # noqa: E731
    assert RegionBounds(mixed, [], 2).relus == 0


def greatest(params: Any, lower: float, upper: float) -> float:
    """The maximum of the only output over a box: a linear program for each pattern of phases of two hidden layers."""
    (w0, b0), (w1, b1), (w2, b2) = [(w.astype("f8"), b.astype("f8")) for w, b in params]
    best = -np.inf
    limits = [(lower, upper)] * w0.shape[1]
    for pattern in product((0.0, 1.0), repeat=len(b0) + len(b1)):
        first, second = np.array(pattern[: len(b0)]), np.array(pattern[len(b0) :])
        slope1, at1 = w1 @ (first[:, None] * w0), w1 @ (first * b0) + b1
        slope2, at2 = w2 @ (second[:, None] * slope1), w2 @ (second * at1) + b2
        sides = np.concatenate([(1 - 2 * first)[:, None] * w0, (1 - 2 * second)[:, None] * slope1])
        most = np.concatenate([(2 * first - 1) * b0, (2 * second - 1) * at1])
        found = linprog(-slope2[0], sides, most, bounds=limits, method="highs")
        if found.status == 0:
            best = max(best, float(at2[0] - found.fun))
    return best


def above(threshold: float, lower: Any, upper: Any, outputs: int = 1) -> VnnProperty:
    """A counterexample has a first output of at least the threshold."""
    row = np.zeros((1, outputs))
    row[0, 0] = -1
    return VnnProperty(len(lower), outputs, (UnsafeCase(lower, upper, row, np.array([-threshold])),))


def test_verdicts_are_those_of_all_patterns() -> None:
    for seed in range(2):
        params = layers([2, 4, 3, 1], seed)
        best = greatest(params, -1.0, 1.0)
        box = (np.full(2, -1.0), np.full(2, 1.0))
        size = 0.05 * (1 + abs(best))
        above_best = verify(network, params, above(best + size, *box), splits="phases", max_boxes=200)
        assert above_best.outcome == "holds", seed
        found = verify(network, params, above(best - size, *box), splits="phases", max_boxes=200)
        assert found.outcome != "holds", seed
        if found.outcome == "violated":
            assert operands_and_outputs(params, found.x[None].astype("f8"))[1][0, 0] >= best - size - 1e-5


def beyond_samples(sizes: list[int], seed: int, radius: float, share: float) -> tuple[Any, VnnProperty]:
    """A network, and outputs of more than dense samples reach by a share of how far these go."""
    rng = np.random.default_rng(seed)
    params = layers(sizes, rng)
    centre = rng.uniform(-0.5, 0.5, sizes[0])
    lower, upper = centre - radius, centre + radius
    y = operands_and_outputs(params, rng.uniform(lower, upper, (100_000, sizes[0])))[1][:, 0]
    return params, above(y.max() + share * (y.max() - y.min()), lower, upper, sizes[-1])


def both(params: Any, unsafe: VnnProperty, most: int) -> tuple[Verification, Verification]:
    return (
        verify(network, params, unsafe, splits="phases", max_boxes=most, timeout=600),
        verify(network, params, unsafe, splits="inputs", max_boxes=most, timeout=600),
    )


def test_phases_decide_what_inputs_leave_open() -> None:
    """12 inputs, 2 layers of 12, which inputs alone leave open."""
    params, unsafe = beyond_samples([12, 12, 12, 3], 0, 0.15, 0.5)
    by_phases, by_inputs = both(params, unsafe, 60)
    assert (by_phases.outcome, by_inputs.outcome, by_inputs.boxes) == ("holds", "unknown", 60)
    assert 1 < by_phases.boxes <= 20


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("seed", "radius", "share", "most"), some([(0, 0.03, 0.05, 40), (0, 0.05, 0.1, 100)]))
def test_a_net_of_the_size_of_acas_xu_in_fewer_regions(seed: int, radius: float, share: float, most: int) -> None:
    params, unsafe = beyond_samples([5, *[50] * 6, 5], seed, radius, share)
    by_phases, by_inputs = both(params, unsafe, most)
    assert (by_phases.outcome, by_inputs.outcome) == ("holds", "unknown")
    again = verify(network, params, unsafe, splits="phases", max_boxes=most, timeout=600)
    assert (again.outcome, again.boxes) == (by_phases.outcome, by_phases.boxes)


def test_verify_most_boxes_warns_at_the_call() -> None:
    params, unsafe = beyond_samples([12, 12, 12, 3], 0, 0.15, 0.5)
    with pytest.warns(DeprecationWarning, match="argument most_boxes is now max_boxes") as caught:
        found = verify(network, params, unsafe, most_boxes=4, timeout=600)
    assert found.boxes == 4 and caught[0].filename == __file__


def test_limits_are_kept_to() -> None:
    params, unsafe = beyond_samples([12, 12, 12, 3], 0, 0.15, 0.5)
    found = verify(network, params, unsafe, max_boxes=4, timeout=600)
    assert (found.outcome, found.boxes) == ("unknown", 4)
    assert verify(network, params, unsafe, timeout=0).outcome == "unknown"
    with pytest.raises(UsageError, match="argument splits: expected one of 'auto', 'phases', 'inputs', got 'layers'"):
        verify(network, params, unsafe, splits="layers")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="argument max_boxes: expected at least 1, got 0"):
        verify(network, params, unsafe, max_boxes=0)
