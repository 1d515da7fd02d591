"""Claims about shipped and written programs: proved, refuted by a run, or undecided; and never proved wrongly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import opstage
from opstage import Spec
from opstage.facts import Causal, ClaimVerdict, Independent
from opstage.models import gpt
from opstage.models.transformer_block import transformer_block
from opstage.ops.trees import map_leaves


def prove(program: Any, *specs: Any, claims: Any) -> tuple[ClaimVerdict, ...]:
    """The verdicts on the program in evaluation form."""
    return opstage.check(program, *specs, train=False, claims=claims).claims


X = Spec("B T 3")
LONE = Spec("T 3")


def _gpt(depth: int = 2) -> tuple[Any, ...]:
    config = gpt.Config(length=8, width=8, heads=2, hidden=8, depth=depth)
    shapes = map_leaves(lambda leaf: Spec(tuple(leaf.shape)), gpt.init(config))
    return config, shapes, Spec("B T", dtype="int64", where=("T <= 8", "T >= 1"))


def test_gpt_is_causal_and_keeps_samples_apart_for_every_size() -> None:
    config, params, text = _gpt()
    verdicts = prove(partial(gpt.logits, config=config), params, text, claims=[Causal("T"), Independent("B")])
    assert [verdict.state for verdict in verdicts] == ["proved", "proved"], verdicts


def test_a_block_that_is_not_causal_is_refuted_with_its_op_and_a_witness() -> None:
    config, params, text = _gpt(depth=1)

    def leaking(ops: Any, params: Any, x: Any) -> Any:
        h = ops.gather_rows(params["bytes"], x)
        return transformer_block(ops, params["blocks"][0], h, replace(config.block, causal=False), False)

    (verdict,) = prove(leaking, params, text, claims=[Causal("T")])
    assert (verdict.state, verdict.op) == ("refuted", "scaled_dot_product_attention")
    assert verdict.source is not None and verdict.witness is not None
    t, s = verdict.witness
    assert s > t


TRUE_LEAKS = {
    "softmax over the axis": lambda ops, x: ops.softmax(x, axis=1),
    "attention": lambda ops, x: ops.scaled_dot_product_attention(x, x, x),
    "a mean over the axis": lambda ops, x: ops.sub(
        x, ops.broadcast_to(ops.reduce_mean(x, axis=1, keepdims=True), shape=x.shape)
    ),
    "a wrong reshape": lambda ops, x: ops.reshape(
        ops.permute(ops.reshape(x, shape=(x.shape[0], 3, x.shape[1])), axes=(0, 2, 1)), shape=x.shape
    ),
    "normalised over positions": lambda ops, x: ops.permute(
        ops.softmax(ops.permute(x, axes=(0, 2, 1)), axis=-1), axes=(0, 2, 1)
    ),
    "samples attended to": lambda ops, x: ops.permute(
        ops.scaled_dot_product_attention(*[ops.permute(x, axes=(1, 0, 2))] * 3, causal=True), axes=(1, 0, 2)
    ),
}


@pytest.mark.parametrize("name", TRUE_LEAKS)
def test_what_leaks_along_an_axis_is_never_proved(name: str) -> None:
    verdicts = prove(
        TRUE_LEAKS[name], Spec("B T 3", where=("T >= 1", "B >= 1")), claims=[Independent("T"), Independent("B")]
    )
    assert "refuted" in [verdict.state for verdict in verdicts], verdicts


def test_what_no_rule_knows_is_undecided_and_named() -> None:
    def program(ops: Any, x: Any) -> Any:
        order = ops.argsort(ops.full(shape=x.shape, value=0.0), axis=0)
        return ops.add(x, ops.gather_rows(x, ops.reshape(ops.slice(order, axis=1, start=0, length=1), shape=(-1,))))

    (verdict,) = prove(program, LONE, claims=[Causal("T")])
    assert (verdict.state, verdict.op) == ("undecided", "gather_rows")


def test_a_merged_axis_is_followed_there_and_back() -> None:
    def program(ops: Any, x: Any) -> Any:
        flat = ops.reshape(x, shape=(x.shape[0] * x.shape[1], 3))
        return ops.reshape(ops.tanh(flat), shape=x.shape)

    states = [verdict.state for verdict in prove(program, X, claims=[Causal("T"), Independent("T")])]
    assert states == ["proved", "proved"]


@pytest.mark.parametrize("axis", ["S", "3", ""])
def test_an_axis_that_no_argument_has_is_said(axis: str) -> None:
    (verdict,) = prove(lambda ops, x: ops.softmax(x, axis=2), X, claims=[Causal(axis)])
    assert (verdict.state, "is not an axis of any argument" in verdict.reason) == ("undecided", True)
