"""The workloads: sizes and data, shared by every side. A side makes a function that does one whole training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Mlp:
    """Dense layers with relu between them, cross-entropy, AdamW."""

    sizes: tuple[int, ...]
    batch: int

    def data(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch, self.sizes[0])).astype(np.float32)
        return x, rng.integers(0, self.sizes[-1], self.batch)

    def flops(self) -> int:
        """Multiplications and additions of the matrix products of one step: forward once, backward twice."""
        return 6 * self.batch * sum(a * b for a, b in zip(self.sizes, self.sizes[1:]))


@dataclass(frozen=True)
class Cnn:
    """3x32x32 images: two 3x3 convolutions, each with relu and a 2x2 pool, then two dense layers."""

    channels: tuple[int, int] = (32, 64)
    dense: int = 128
    classes: int = 10
    batch: int = 64

    def data(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch, 3, 32, 32)).astype(np.float32)
        return x, rng.integers(0, self.classes, self.batch)

    def flops(self) -> int:
        a, b = self.channels
        forward = 32 * 32 * 27 * a + 16 * 16 * 9 * a * b + b * 64 * self.dense + self.dense * self.classes
        return 6 * self.batch * forward


@dataclass(frozen=True)
class Gpt:
    """A pre-norm transformer with tanh-gelu and causal attention over `length` tokens."""

    layers: int
    heads: int
    width: int
    length: int
    batch: int
    vocabulary: int = 96

    def data(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, self.vocabulary, (self.batch, self.length + 1))
        return tokens[:, :-1], tokens[:, 1:]

    def flops(self) -> int:
        tokens = self.batch * self.length
        dense = self.layers * 12 * self.width**2 + self.width * self.vocabulary
        attention = self.layers * 2 * self.length * self.width
        return 6 * tokens * (dense + attention)


@dataclass(frozen=True)
class Lstm:
    """A long short-term memory over `length` steps, a label at each of them: what a loop costs besides its products."""

    length: int
    batch: int
    inputs: int
    hidden: int
    classes: int = 10

    def data(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.length, self.batch, self.inputs)).astype(np.float32)
        return x, rng.integers(0, self.classes, (self.length, self.batch))

    def flops(self) -> int:
        step = 4 * self.hidden * (self.inputs + self.hidden) + self.hidden * self.classes
        return 6 * self.length * self.batch * step


@dataclass(frozen=True)
class Chain:
    """relu, tanh and mul by a parameter in turn, `ops` of them, on a vector of 4; the gradient of the sum."""

    ops: int

    def data(self) -> tuple[Any, ...]:
        return (np.random.default_rng(0).standard_normal(4).astype(np.float32),)

    def flops(self) -> int:
        return 4 * 3 * self.ops


WORKLOADS: dict[str, Any] = {
    "mlp-s": Mlp((64, 256, 256, 10), 128),
    "mlp-l": Mlp((784, 2048, 2048, 10), 256),
    "cnn": Cnn(),
    "gpt": Gpt(layers=4, heads=4, width=128, length=64, batch=12),
    "gpt-m": Gpt(layers=6, heads=6, width=384, length=128, batch=8),
    "lstm": Lstm(length=500, batch=32, inputs=64, hidden=128),
    "chain-1000": Chain(1000),
    "chain-16000": Chain(16000),
}
ON_GPU: dict[str, Any] = {
    **WORKLOADS,
    "gpt2-s": Gpt(layers=12, heads=12, width=768, length=1024, batch=8, vocabulary=50257),
}
"""What a GPU is measured by: the same, and one that fills it."""
