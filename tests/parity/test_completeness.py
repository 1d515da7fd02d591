"""Every method of Ops and every derived function stands beside PyTorch, or is listed with the reason why not."""

from __future__ import annotations

from opstage.ops import derived, protocol
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
