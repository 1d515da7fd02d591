"""Random bits are those of SplitMix64, and each draw of a program has a site of its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import opstage
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.ops import splitmix
from opstage.ops.derived import dropout
from opstage.ops.splitmix import draw_site
from opstage.options import Options
from opstage.transforms.tape import Tape
from tests.samples.random import uniform

WORD = st.integers(0, 2**64 - 1)


def reference(x: int) -> int:
    """SplitMix64 as semantics spell it, one step at a time."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z // 2**30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z // 2**27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z // 2**31)


def element(key: int, i: int) -> float:
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
    expected = [element(key, i) for i in range(count)]
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
        u, v = element(77, 2 * i), element(77, 2 * i + 1)
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
    assert splitmix.draw_site((("blocks", 3), ("attention", 0)), 2) == expected
    assert splitmix.draw_site((), 0) == int.from_bytes(hashlib.blake2b(b"0", digest_size=8).digest(), "little")


def test_sites_differ_where_places_differ() -> None:
    names = ["a", "b", "a#0/1:b", "a/", "1", ""]
    paths = [(), *[((name, o),) for name in names for o in range(3)]]
    paths += [((first, o), (second, p)) for first in names for second in names for o in range(3) for p in range(3)]
    sites = {splitmix.draw_site(path, draw) for path in paths for draw in range(4)}
    assert len(sites) == 4 * len(paths)
    assert all(0 <= site < 2**64 for site in sites)


# Where draws are made decides their bits: by region path and ordinal within the region, and by nothing else -----------

FLOAT64 = Options(dtype="float64")


def draw(ops: Any, *_: Any) -> Any:
    return ops.rand_uniform(shape=(4,))


def bits(path: tuple[tuple[str, int], ...], ordinal: int, *, seed: int = 0, step: int = 0) -> Any:
    """What the draw of that ordinal in that region must be, by the plain reference."""
    return uniform((4,), seed, draw_site(path, ordinal), step)


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def test_draws_are_numbered_within_their_region() -> None:
    def program(ops: Any) -> Any:
        first = draw(ops)
        inside = ops.region("block", lambda ops: [draw(ops), draw(ops)])
        return [first, *inside, draw(ops)]

    block = (("block", 0),)
    expected = [bits((), 0), bits(block, 0), bits(block, 1), bits((), 1)]
    for actual, wanted in zip(run(program), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_occurrences_and_nesting_are_told_apart() -> None:
    def program(ops: Any) -> Any:
        nested = lambda ops: ops.region("inner", draw)  # noqa: E731
        return [ops.region("block", nested), ops.region("block", nested), ops.region("inner", draw)]

    paths = [(("block", 0), ("inner", 0)), (("block", 1), ("inner", 0)), (("inner", 0),)]
    for actual, path in zip(run(program), paths, strict=True):
        np.testing.assert_array_equal(actual, bits(path, 0))


def test_a_draw_keeps_its_bits_when_another_region_gains_ops() -> None:
    def program(ops: Any, x: Any, more: bool) -> Any:
        ops.region("first", lambda ops: [draw(ops), draw(ops), ops.exp(x)] if more else ops.exp(x))
        if more:
            x = ops.relu(ops.mul(x, x))
        return [ops.region("second", draw), draw(ops)]

    before = run(lambda ops, x: program(ops, x, False), np.ones(3))
    after = run(lambda ops, x: program(ops, x, True), np.ones(3))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_site_that_is_given_takes_no_number() -> None:
    given, numbered = run(lambda ops: [ops.rand_uniform(shape=(4,), site=77), draw(ops)])
    np.testing.assert_array_equal(given, uniform((4,), 0, 77))
    np.testing.assert_array_equal(numbered, bits((), 0))


def test_composites_draw_at_the_site_of_their_call() -> None:
    def program(ops: Any) -> Any:
        ops.rand_normal(shape=(4,))  # two uniform draws inside, one number outside
        mask = ops.bernoulli_mask(ops.full(shape=(), value=0.5), shape=(4,))
        return [mask, draw(ops)]

    mask, after = run(program)
    np.testing.assert_array_equal(mask, bits((), 1) < 0.5)
    np.testing.assert_array_equal(after, bits((), 2))


def test_the_seed_is_the_draws_own_or_the_options() -> None:
    default, own = run(lambda ops: [draw(ops), ops.rand_uniform(shape=(4,), seed=5)], options=FLOAT64.replace(seed=9))
    np.testing.assert_array_equal(default, bits((), 0, seed=9))
    np.testing.assert_array_equal(own, bits((), 1, seed=5))


@pytest.mark.parametrize("step", [0, 1, 10**12])
def test_each_step_draws_afresh(step: int) -> None:
    (drawn,) = NumpyOps(FLOAT64).execute(lambda ops: (draw(ops),), (), step=step)
    np.testing.assert_array_equal(drawn, bits((), 0, step=step))


def test_float32_and_exact_have_the_same_bits() -> None:
    for dtype in ("float32", "exact"):
        drawn = run(draw, options=Options(dtype=dtype))
        np.testing.assert_array_equal(drawn.astype(np.float64), bits((), 0))


def test_derivatives_do_not_renumber_draws() -> None:
    """Under a tape, forward mode and both, the same masks are drawn as in a plain run."""

    def noisy(ops: Any, x: Any) -> Any:
        y = ops.region("layer", lambda ops: dropout(ops, ops.softmax(x), 0.5, True))
        return ops.sum(ops.mul(y, draw(ops)))

    x = np.linspace(-1, 1, 4)
    value = run(noisy, x)
    assert opstage.value_and_grad(noisy, x, options=FLOAT64)[0] == pytest.approx(value, rel=1e-14)
    assert opstage.jvp(noisy, (x,), (np.ones(4),), options=FLOAT64)[0] == pytest.approx(value, rel=1e-14)

    def nested(ops: Any, x: Any) -> Any:
        inner = Tape(Tape(ops))
        return inner.region("layer", lambda ops: ops.rand_uniform(shape=(4,))).value.value

    np.testing.assert_array_equal(run(nested, x), bits((("layer", 0),), 0))
    after_gradient = run(lambda ops, x: [ops.vjp_of(noisy, x)[0], draw(ops)][1], x)
    np.testing.assert_array_equal(after_gradient, bits((), 1))


def test_two_draws_of_one_program_differ() -> None:
    first, second = run(lambda ops: [draw(ops), draw(ops)])
    assert (first != second).any()
