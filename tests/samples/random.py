"""Samples: random tensors. The reference draws one word at a time, in Python integers, as the definition has it.

The site is given, so that it is known; how sites are numbered is another test's subject.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given

_WORD = 2**64


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) % _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)


def uniform(shape: tuple[int, ...], seed: int, site: int, step: int = 0, dtype: str | None = None) -> Any:
    """The draw at a site, element by element."""
    key = splitmix64((splitmix64((splitmix64(seed) + step) % _WORD) + site) % _WORD)
    values = [(splitmix64((key + i) % _WORD) >> 40) / 2**24 for i in range(math.prod(shape))]
    return np.array(values).reshape(shape)


def normal(shape: tuple[int, ...], seed: int, site: int, dtype: str | None = None) -> Any:
    u = uniform((math.prod(shape), 2), seed, site)
    pairs = zip(u[:, 0], u[:, 1])
    return np.array([math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b) for a, b in pairs]).reshape(shape)


def _mask(keep_prob: Any, shape: tuple[int, ...], seed: int, site: int) -> Any:
    return np.where(uniform(shape, seed, site) < keep_prob, 1.0, 0.0)


def _nothing(rng: np.random.Generator) -> tuple[Any, ...]:
    return ()


_BITS: Any = {"order": 0, "float32": (0.0, 0.0), "float64": (0.0, 0.0)}
_LARGE = 2**64 - 1

SAMPLES = [
    Sample("rand_uniform", "matrix", _nothing, uniform, shape=(3, 4), seed=0, site=0, **_BITS, exact=True),
    Sample("rand_uniform", "large words", _nothing, uniform, shape=(5,), seed=_LARGE, site=_LARGE, **_BITS),
    Sample("rand_uniform", "scalar", _nothing, uniform, shape=(), seed=7, site=11, **_BITS),
    Sample("rand_uniform", "empty", _nothing, uniform, shape=(0, 3), seed=7, site=11, **_BITS),
    Sample("rand_normal", "matrix", _nothing, normal, shape=(4, 5), seed=3, site=2**63, order=0),
    Sample("rand_normal", "scalar", _nothing, normal, shape=(), seed=0, site=1, order=0),
    Sample("bernoulli_mask", "matrix", given(0.75), _mask, shape=(4, 5), seed=1, site=2, **_BITS, exact=True),
    Sample("bernoulli_mask", "never", given(0.0), _mask, shape=(6,), seed=1, site=2, **_BITS),
    Sample("bernoulli_mask", "always", given(1.0), _mask, shape=(6,), seed=1, site=2, **_BITS),
]

BAD_CALLS = [
    BadCall("rand_uniform", "seed", tuple, r"seed must be an int with 0 <= seed < 2\^64", shape=(2,), seed=-1),
    BadCall("rand_uniform", "site", tuple, "site must be an int .* but is 0.5", shape=(2,), site=0.5),
    BadCall("rand_uniform", "shape", tuple, "sizes that are at least 0", shape=(2, -1)),
    BadCall("rand_uniform", "dtype", tuple, "dtype must be float32", shape=(2,), dtype="int64"),
    BadCall("rand_normal", "dtype", tuple, "dtype must be float32", shape=(2,), dtype="bool"),
    BadCall("bernoulli_mask", "vector", given(np.ones(3)), "keep_prob must have rank 0", shape=(3,)),
    BadCall("bernoulli_mask", "integer", given(1), "keep_prob must be a float tensor", shape=(3,)),
]
