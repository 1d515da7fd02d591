"""Rates of a device that nobody has: round numbers by which predictions can be made by hand."""

from __future__ import annotations

from opstage.planning.rates import GIVEN, Rates

FLAT = Rates(
    name="flat",
    origin=GIVEN,
    source="made up",
    peak=1e9,
    bandwidths=((1, 1e8),),
    call=1e-6,
    looped_call=1e-7,
    parallel_call=1e-5,
    step=1e-3,
    watts=100.0,
    memory=10**8,
)
