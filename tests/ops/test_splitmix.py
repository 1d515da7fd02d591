"""Random bits against published numbers, a plain loop over Python integers, and the distributions they should have."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from opstage.ops import splitmix

WORD = st.integers(0, 2**64 - 1)


def reference(x: int) -> int:
    """SplitMix64 as semantics spell it, one step at a time."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z // 2**30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z // 2**27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z // 2**31)


def uniform(key: int, i: int) -> float:
    return (reference(key + i) // 2**40) / 2**24


def test_published_values() -> None:
    assert splitmix.splitmix64(0) == 0xE220A8397B1DCDAF
    # The first five numbers of the generator seeded with 1234567, as its author's code prints them.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix.splitmix64(1234567 + n * 0x9E3779B97F4A7C15) for n in range(5)] == published


@settings(derandomize=True, max_examples=300)
@given(st.integers(-(2**70), 2**70))
def test_python_integers_wrap(x: int) -> None:
    assert splitmix.splitmix64(x) == reference(x)


@settings(derandomize=True, max_examples=100)
@given(WORD, st.integers(0, 2**40), WORD)
def test_keys(seed: int, step: int, site: int) -> None:
    key = reference(reference(reference(seed) + step) + site)
    assert splitmix.stream_key(seed, step, site) == key
    assert splitmix.iteration_key(key, step) == reference(key + step)


@pytest.mark.parametrize("key", [0, 12345, 2**64 - 5, 2**64 - 20000])
def test_uniform_elements(key: int) -> None:
    count = 40000  # more than two chunks; some of the keys wrap inside
    expected = [uniform(key, i) for i in range(count)]
    for dtype in (np.float32, np.float64):
        drawn = splitmix.uniform_bits(key, count, dtype)
        assert drawn.dtype == dtype
        assert drawn.tolist() == expected
    assert splitmix.random_words(key, count).tolist() == [reference(key + i) for i in range(count)]


def test_exact_elements_are_fractions() -> None:
    drawn = splitmix.uniform_bits(9, 5, object)
    assert drawn.tolist() == [Fraction(reference(9 + i) // 2**40, 2**24) for i in range(5)]
    assert all(isinstance(value, Fraction) for value in splitmix.normal_bits(9, 3, object))


@pytest.mark.parametrize("draw", [splitmix.uniform_bits, splitmix.normal_bits])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_part_can_be_drawn_alone(draw: object, dtype: type) -> None:
    assert callable(draw)
    whole = draw(3, 40000, dtype)
    for start, count in [(0, 0), (0, 1), (1, 1), (16383, 3), (12345, 20000), (39999, 1)]:
        assert draw(3, count, dtype, start=start).tobytes() == whole[start : start + count].tobytes()


def test_normal_elements_are_box_muller() -> None:
    drawn = splitmix.normal_bits(77, 20001, np.float64)
    for i in [*range(50), 8191, 8192, 16384, 20000]:
        u, v = uniform(77, 2 * i), uniform(77, 2 * i + 1)
        assert drawn[i] == pytest.approx(
            math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v), rel=1e-13, abs=1e-15
        )
    assert (splitmix.normal_bits(77, 20001, np.float32) == drawn.astype(np.float32)).all()


def test_distributions() -> None:
    uniform_sample = splitmix.uniform_bits(2024, 200_000, np.float64)
    assert stats.kstest(uniform_sample, "uniform").pvalue > 0.01
    assert stats.kstest(splitmix.normal_bits(2024, 200_000, np.float64), "norm").pvalue > 0.01
    neighbours = np.corrcoef(uniform_sample[:-1], uniform_sample[1:])[0, 1]
    assert abs(neighbours) < 4 / math.sqrt(200_000)


@pytest.mark.slow
def test_every_bit_is_fair_and_neighbouring_keys_are_independent() -> None:
    count = 4_000_000
    words = splitmix.random_words(7, count)
    limit = 4.5 * math.sqrt(count) / 2
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - count / 2) < limit
    # Streams whose keys are counted up, as those of successive steps are, must not resemble each other.
    for step in range(20):
        first, second = (splitmix.uniform_bits(splitmix.stream_key(0, s, 0), 200_000) for s in (step, step + 1))
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(200_000)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_permutation_holds_every_integer_once(count: int) -> None:
    order = splitmix.permutation(5, count)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))


def test_permutations_are_uniform() -> None:
    counts = np.zeros((4, 4))
    for key in range(8000):
        counts[np.arange(4), splitmix.permutation(splitmix.splitmix64(key), 4)] += 1
    assert stats.chisquare(counts, axis=1).pvalue.min() > 0.001


def test_site_is_the_documented_hash() -> None:
    text = "6:blocks#3/9:attention#0/2"
    expected = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    assert splitmix.site_of((("blocks", 3), ("attention", 0)), 2) == expected
    assert splitmix.site_of((), 0) == int.from_bytes(hashlib.blake2b(b"0", digest_size=8).digest(), "little")


def test_sites_differ_where_places_differ() -> None:
    names = ["a", "b", "a#0/1:b", "a/", "1", ""]
    paths = [(), *[((name, o),) for name in names for o in range(3)]]
    paths += [((first, o), (second, p)) for first in names for second in names for o in range(3) for p in range(3)]
    sites = {splitmix.site_of(path, draw) for path in paths for draw in range(4)}
    assert len(sites) == 4 * len(paths)
    assert all(0 <= site < 2**64 for site in sites)
