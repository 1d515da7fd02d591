"""Rooflines of single kernels beside ones made by hand, and rates between those that were measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from opstage.ops.errors import UsageError
from opstage.planning.rates import KernelPoint, Rates, hot_seconds
from opstage.planning.roofline import COMPUTE, MEMORY, OVERHEAD, CountedOp, Move, PlannedKernel, predict_time
from tests.planning.flat import FLAT


def call(flops: int, nbytes: int, name: str = "add", **more: object) -> PlannedKernel:
    made = PlannedKernel(name, (CountedOp(name, flops, (nbytes // 4,)),), (Move(nbytes, nbytes),), (), "forward")
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "seconds", "bound"),
    [
        (call(10**6, 100), 1e-3 + 1e-6, COMPUTE),
        (call(100, 10**6), 1e-2 + 1e-6, MEMORY),
        (call(100, 10), 1e-7 + 1e-6, OVERHEAD),
        (call(0, 0), 1e-6, OVERHEAD),
        (call(10**6, 100, times=3), 3 * (1e-3 + 1e-6), COMPUTE),
        (call(10**6, 100, looped=True), 1e-3 + 1e-7, COMPUTE),
        (call(10**6, 100, fused=True, parallel=True), 1e-3 + 1.1e-5, COMPUTE),
    ],
)
def test_a_kernel_takes_the_longer_of_arithmetic_and_bytes_and_what_a_call_takes(
    kernel: PlannedKernel, seconds: float, bound: str
) -> None:
    found = predict_time(kernel, FLAT)
    assert found.seconds == pytest.approx(seconds)
    assert found.bound == bound


def test_a_loop_that_is_not_shared_has_one_of_the_threads() -> None:
    rates = replace(FLAT, threads=4, one_thread=((1, 2e7),))
    alone, shared = call(10**6, 0, fused=True), call(10**6, 0, fused=True, parallel=True)
    assert predict_time(alone, rates).compute == pytest.approx(4 * predict_time(shared, rates).compute)
    assert predict_time(call(0, 10**6, fused=True), rates).memory == pytest.approx(0.05)
    assert predict_time(call(0, 10**6, fused=True, parallel=True), rates).memory == pytest.approx(0.01)


def test_ops_in_loops_have_rates_of_their_own() -> None:
    rates = replace(FLAT, loops={"any": 1e9, "exp": 1e7})
    kernel = replace(
        call(0, 0, fused=True), ops=(CountedOp("exp", 100), CountedOp("add", 1000), CountedOp("mul", 1000))
    )
    assert predict_time(kernel, rates).compute == pytest.approx(1e-5 + 2e-6)


def test_bandwidth_lies_between_what_was_measured() -> None:
    rates = replace(FLAT, bandwidths=((1000, 8e9), (100_000, 2e9)))
    assert rates.bandwidth(10) == 8e9
    assert rates.bandwidth(1000) == 8e9
    assert rates.bandwidth(10_000) == pytest.approx(4e9)
    assert rates.bandwidth(10**9) == 2e9


def test_bytes_that_were_touched_long_ago_come_from_further_away() -> None:
    rates = replace(FLAT, bandwidths=((1000, 8e9), (100_000, 2e9)))
    near, far = (replace(call(0, 800), moves=(Move(800, distance),)) for distance in (800, 10**6))
    assert predict_time(far, rates).memory == pytest.approx(4 * predict_time(near, rates).memory)


CURVE = (KernelPoint((100,), 100, 800, 1e-6), KernelPoint((10_000,), 10_000, 80_000, 1e-5))


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(8, 1e-6), (800, 1e-6), (8000, math.sqrt(1e-11)), (80_000, 1e-5), (800_000, 1e-4)]
)
def test_a_kernel_lies_on_the_line_of_those_of_its_op(nbytes: int, seconds: float) -> None:
    assert hot_seconds(CURVE, (nbytes // 8,), nbytes // 8, nbytes, contraction=False) == pytest.approx(seconds)


def test_a_product_has_the_rate_of_the_nearest_shapes() -> None:
    slow, fast = (
        KernelPoint((64, 64, 64), 1024, 768, 1e-6),
        KernelPoint((10**4, 10**4, 10**4), 2 * 10**6, 12 * 10**4, 1e-4),
    )
    rate = lambda sizes, flops: flops / hot_seconds((slow, fast), sizes, flops, 0, contraction=True)  # noqa: E731
    assert rate((64, 64, 64), 1024) == pytest.approx(1.024e9)
    assert rate((10**4, 10**4, 10**4), 2 * 10**6) == pytest.approx(2e10)
    assert (
        1.024e9 < rate((70, 70, 70), 1100) < rate((900, 900, 900), 54_000) < rate((9000, 9000, 9000), 1_700_000) < 2e10
    )


def test_an_op_that_was_not_measured_is_said() -> None:
    rates = replace(FLAT, kernels={"mul": CURVE})
    assert predict_time(call(100, 800, "mul"), rates).rated
    assert not predict_time(call(100, 800, "add"), rates).rated
    assert predict_time(call(0, 0, "reshape"), rates).rated  # it computes and moves nothing


def test_rates_are_plain_data_and_back() -> None:
    rates = replace(FLAT, kernels={"mul": CURVE}, loops={"any": 1.0})
    assert Rates.from_data(rates.as_data()) == rates
    with pytest.raises(UsageError, match="expected the result of as_data"):
        Rates.from_data({"name": "x"})
