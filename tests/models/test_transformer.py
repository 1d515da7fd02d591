"""The transformer block against its formulas in NumPy, and what it lets a position see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import opstage
from opstage.init import build
from opstage.models.transformer_block import Block, block_init, transformer_block
from opstage.ops.trees import map_leaves

from .common import FLOAT64

WIDTH, HEADS, HIDDEN, POSITIONS = 6, 2, 10, 5


def parameters() -> Any:
    """Numbers of which none has a special value: neither gammas of 1 nor biases of 0."""
    generator = np.random.default_rng(1)
    block = Block(WIDTH, HEADS, HIDDEN)
    return map_leaves(lambda p: generator.normal(size=p.shape), build(block_init(block), dtype="float64"))


def positions() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(3, POSITIONS, WIDTH))


def run(params: Any, x: np.ndarray, block: Block) -> np.ndarray:
    return np.asarray(opstage.run(lambda ops, p, x: transformer_block(ops, p, x, block), params, x, options=FLOAT64))


def normalized(params: Any, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * params["gamma"] + params["beta"]


def linear(params: Any, x: np.ndarray) -> np.ndarray:
    return x @ params["weight"].T + params["bias"]


def by_hand(params: Any, x: np.ndarray, causal: bool) -> np.ndarray:
    """One sequence (T, width), head after head and query after query."""
    h = normalized(params["norm1"], x)
    q, k, v = (linear(params["attention"][name], h) for name in ("query", "key", "value"))
    size = WIDTH // HEADS
    merged = np.empty_like(x)
    for head in range(HEADS):
        at = slice(head * size, (head + 1) * size)
        for t in range(len(x)):
            seen = t + 1 if causal else len(x)
            weights = softmax(k[:seen, at] @ q[t, at] / math.sqrt(size))
            merged[t, at] = weights @ v[:seen, at]
    x = x + linear(params["attention"]["out"], merged)
    h = linear(params["mlp"]["up"], normalized(params["norm2"], x))
    h = h / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return x + linear(params["mlp"]["down"], h)


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_its_formulas(causal: bool) -> None:
    params, x = parameters(), positions()
    expected = np.stack([by_hand(params, sequence, causal) for sequence in x])
    np.testing.assert_allclose(run(params, x, Block(WIDTH, HEADS, HIDDEN, causal)), expected, rtol=1e-10, atol=1e-12)


def test_only_a_causal_block_hides_the_later_positions() -> None:
    params, x = parameters(), positions()
    other = x.copy()
    other[:, 3] = 0.5
    for causal in (True, False):
        block = Block(WIDTH, HEADS, HIDDEN, causal)
        moved = np.abs(run(params, x, block) - run(params, other, block)).max(axis=(0, 2)) > 0
        np.testing.assert_array_equal(moved, np.arange(POSITIONS) >= 3 if causal else True)


def test_dropout_is_for_training_alone() -> None:
    params, x, block = parameters(), positions(), Block(WIDTH, HEADS, HIDDEN, dropout=0.5)

    def program(ops: Any, p: Any, x: Any, train: bool) -> Any:
        return transformer_block(ops, p, x, block, train)

    def formed(train: bool) -> np.ndarray:
        return np.asarray(opstage.run(lambda ops, p, x: program(ops, p, x, train), params, x, options=FLOAT64))

    np.testing.assert_array_equal(formed(False), run(params, x, Block(WIDTH, HEADS, HIDDEN)))
    assert np.abs(formed(True) - formed(False)).max() > 0.1


def test_deeper_models_start_with_quieter_blocks() -> None:
    one, four = (build(block_init(Block(64, 4, 128), depth=depth)) for depth in (1, 4))
    for path in (("attention", "out"), ("mlp", "down")):
        shrunk = four[path[0]][path[1]]["weight"].std() / one[path[0]][path[1]]["weight"].std()
        assert shrunk == pytest.approx(1 / 2, rel=1e-6)
    assert four["mlp"]["up"]["weight"].std() == pytest.approx(one["mlp"]["up"]["weight"].std())


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match=r"width=6 cannot be divided among heads=4"):
        Block(6, 4, 8)
