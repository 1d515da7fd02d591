"""Every op stands beside PyTorch or has a reason, deviations are as the page says, and the comparison can fail."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from opstage.distributed.compiled_collectives import MEET, MEET_BEGIN, MEET_END
from opstage.distributed.transport import EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops import derived, protocol
from tests.docs.test_pages import PAIRS, names
from tests.parity.deviations import DEVIATIONS, Deviation
from tests.parity.twins import TWINS, WITHOUT_TWIN

OPS = protocol.OPS | {f"derived.{name}" for name in derived.__all__}
COMPARED = {twin.op for twin in TWINS}


def test_every_op_has_a_twin_or_a_reason() -> None:
    assert OPS - COMPARED - set(WITHOUT_TWIN) == set()


def test_nothing_else_is_listed() -> None:
    assert (COMPARED | set(WITHOUT_TWIN)) <= OPS


def test_an_op_with_a_twin_needs_no_reason() -> None:
    assert COMPARED & set(WITHOUT_TWIN) == set()


def test_what_takes_a_gradient_is_compared_in_it_or_has_a_reason() -> None:
    """A reason that stands at every twin of an op is one that its derivatives, second ones of another op, carry."""
    reasons = {op: {twin.gradient for twin in TWINS if twin.op == op} for op in COMPARED}
    never = {op for op, found in reasons.items() if "" not in found}
    assert all(op.endswith(("_grad", "_update")) for op in never)


# The guide's table for who comes from PyTorch -------------------------------------------------------------------------


@pytest.mark.parametrize("name", names([theirs for theirs, _ in PAIRS]))
def test_pytorch_has_the_name(name: str) -> None:
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            import_module(path)
        found = getattr(found, part)


# Deviations -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda d: f"{d.op}: {d.pytorch}")
def test_both_do_what_is_said(deviation: Deviation) -> None:
    deviation.check()


# A kernel that is wrong in one element, by 1e-7, is found by some case ------------------------------------------------

TABLE = kernel_table("float64", True)
NO_OPS = {EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT, MEET, MEET_BEGIN, MEET_END}
"""Calls that no program makes: bytes between processes, and where hosted ranks meet at a collective, which
tests/distributed compares with one process that runs the program eagerly."""
KERNELS = sorted((p for p in TABLE if p not in NO_OPS and p.name not in WITHOUT_TWIN), key=lambda p: p.name)


def test_random_kernels_alone_have_no_twin() -> None:
    assert {p.name for p in TABLE} - {p.name for p in KERNELS} - {p.name for p in NO_OPS} <= set(WITHOUT_TWIN)
    assert not {p.name for p in NO_OPS} & set(protocol.OPS)
