"""Initialisers against PyTorch's formulas written out, and plans: what a parameter gets, what an error names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from opstage import init
from opstage.ops.errors import UsageError

SEED = 42
RANDOM = [
    init.uniform(-2.0, 3.0, SEED),
    init.normal(1.5, 0.25, SEED),
    init.xavier_uniform(seed=SEED),
    init.kaiming_uniform(seed=SEED),
]
ALL = [init.zeros, init.ones, *RANDOM, init.flat(np.linspace(-1, 1, 5 * 7 * 3))]


def splitmix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def unit(key: int, count: int) -> np.ndarray:
    """The uniform stream of `key`, element by element."""
    return np.array([(splitmix(key + i) >> 40) / 2**24 for i in range(count)])


def test_constants() -> None:
    assert (init.zeros.materialise((2, 3)) == np.zeros((2, 3))).all()
    assert (init.ones.materialise((), "float64") == 1.0).all()
    assert init.ones.materialise((4,)).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_is_the_stream_between_its_bounds(dtype: str) -> None:
    made = init.uniform(-2.0, 3.0, SEED)
    expected = (-2.0 + 5.0 * unit(made.key, 35)).astype(dtype)
    assert made.materialise((5, 7), dtype).tolist() == expected.reshape(5, 7).tolist()


def test_normal_has_its_mean_and_deviation() -> None:
    sample = init.normal(1.5, 0.25, SEED).materialise((300, 400), "float64").ravel()
    assert stats.kstest((sample - 1.5) / 0.25, "norm").pvalue > 0.01


@pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"),
    [((256, 784), 784, 256), ((16, 8, 3, 3), 8 * 9, 16 * 9), ((4, 6, 5), 30, 20), ((2, 3, 2, 2, 2), 24, 16)],
)
def test_fans_and_bounds_are_pytorchs(shape: tuple[int, ...], fan_in: int, fan_out: int) -> None:
    assert init.fans(shape) == (fan_in, fan_out)
    xavier = init.xavier_uniform(seed=1).for_shape(shape)
    assert xavier.high == -xavier.low == pytest.approx(math.sqrt(2 / (fan_in + fan_out)) * math.sqrt(3), rel=1e-15)
    kaiming = init.kaiming_uniform(seed=1).for_shape(shape)
    assert kaiming.high == -kaiming.low == pytest.approx(math.sqrt(2) * math.sqrt(3) / math.sqrt(fan_in), rel=1e-15)
    layer = init.kaiming_uniform(seed=1, negative_slope=math.sqrt(5)).for_shape(shape)
    assert layer.high == pytest.approx(1 / math.sqrt(fan_in), rel=1e-15)
    tanh = init.xavier_uniform(seed=1, gain=5 / 3).for_shape(shape)
    assert tanh.high == pytest.approx(5 / 3 * xavier.high, rel=1e-15)
    assert init.xavier_uniform(fan_in, fan_out, 1).materialise((7,)).tolist() == xavier.materialise((7,)).tolist()
    assert init.kaiming_uniform(fan_in, 1).materialise((7,)).tolist() == kaiming.materialise((7,)).tolist()


def test_xavier_fills_its_interval() -> None:
    sample = init.xavier_uniform(seed=SEED).materialise((300, 200), "float64").ravel()
    bound = math.sqrt(6 / 500)
    assert stats.kstest(sample, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.01


@pytest.mark.parametrize("scheme", ALL, ids=lambda scheme: type(scheme).__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "exact"])
def test_value_at_agrees_bitwise(scheme: init.Initialiser, dtype: str) -> None:
    whole = scheme.materialise((5, 7, 3), dtype).ravel()
    for index in range(whole.size):
        value = scheme.value_at((5, 7, 3), index, dtype)
        assert value == whole[index]
        assert type(value) is type(whole[index])


@pytest.mark.parametrize("scheme", RANDOM, ids=lambda scheme: type(scheme).__name__)
def test_value_at_agrees_across_the_parts_of_a_large_parameter(scheme: init.Initialiser) -> None:
    shape = (600, 1000)
    whole = scheme.materialise(shape)
    for index in (0, 16383, 16384, 2**18 - 1, 2**18, 2**18 + 1, 599_999):
        assert scheme.value_at(shape, index).tobytes() == whole.ravel()[index].tobytes()


@pytest.mark.parametrize("scheme", RANDOM, ids=lambda scheme: type(scheme).__name__)
def test_float32_is_float64_rounded_once(scheme: init.Initialiser) -> None:
    wide = scheme.materialise((30, 40), "float64")
    assert (scheme.materialise((30, 40), "float32") == wide.astype(np.float32)).all()
    assert scheme.materialise((2, 2), "exact")[1, 1] == Fraction(float(scheme.materialise((2, 2), "float64")[1, 1]))


def test_seeds_give_different_values() -> None:
    samples = {init.uniform(0, 1, seed).materialise((4,)).tobytes() for seed in range(100)}
    assert len(samples) == 100


def test_flat_is_its_payload() -> None:
    payload = np.arange(6.0)
    made = init.flat(payload)
    payload[0] = 99.0
    assert made.materialise((2, 3), "float64").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert init.flat([[1, 2], [3, 4]]).materialise((2, 2)).dtype == np.float32
    third = Fraction(1, 3)
    assert init.flat([third, 1]).materialise((2,), "exact").tolist() == [third, Fraction(1)]
    assert init.flat([third]).materialise((1,), "float64").tolist() == [1 / 3]
    with pytest.raises(ValueError, match="read-only"):
        made.values[0] = 1.0


def test_an_array_made_is_ones_own() -> None:
    made = init.flat(np.arange(3.0))
    made.materialise((3,), "float64")[0] = 7.0
    assert made.value_at((3,), 0) == 0.0


def test_empty_parameters() -> None:
    for scheme in (*RANDOM, init.zeros):
        assert scheme.materialise((0, 3)).shape == (0, 3)
        assert scheme.materialise((3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: init.uniform(1.0, 0.0), "uniform needs finite bounds with low <= high but has low=1.0, high=0.0"),
        (lambda: init.uniform(0.0, math.inf), "uniform needs finite bounds"),
        (lambda: init.normal(0.0, -1.0), "normal needs a finite mean and std >= 0 but has mean=0.0, std=-1.0"),
        (lambda: init.uniform(0, 1, -1), "seed=-1 is not a seed"),
        (lambda: init.kaiming_uniform(0), "fan_in=0 is not a number of units"),
        (lambda: init.xavier_uniform(3, 2.5), "fan_out=2.5 is not a number of units"),  # type: ignore[arg-type]
        (lambda: init.xavier_uniform(gain=math.nan), "gain=nan is not finite"),
        (lambda: init.flat(["a"]), "flat takes integers, floats or fractions"),
        (lambda: init.flat([None]), "flat takes numbers"),
        (lambda: init.flat([True]), "flat takes integers, floats or fractions, not values of dtype bool"),
        (lambda: init.kaiming_uniform(seed=0).materialise((3,)), "shape (out, in, *k), and (3,) has rank 1"),
        (lambda: init.uniform(0, 1).materialise((3,)), "Uniform(low=0, high=1, seed=None) needs a seed"),
        (lambda: init.zeros.materialise((3, -1)), "a parameter's shape holds integers >= 0, and this one is (3, -1)"),
        (lambda: init.zeros.materialise((3,), "int64"), "parameters are float32, float64 or exact, not int64"),
        (lambda: init.zeros.materialise((3,), "flaot32"), "did you mean 'float32'?"),
        (lambda: init.zeros.value_at((2, 3), 6), "index 6 is out of range for shape (2, 3), which has 6 elements"),
        (lambda: init.zeros.value_at((2, 3), -1), "index -1 is out of range"),
        (lambda: init.flat([1.0, 2.0]).materialise((3,)), "flat has 2 values but shape (3,) needs 3"),
        (
            lambda: init.flat(np.ones((2, 3))).materialise((3, 2)),
            "flat has values of shape (2, 3) but the parameter has",
        ),
        (lambda: init.Declaration((3,), 0.0), "a declaration holds 0.0, which is not an initialiser"),  # type: ignore[arg-type]
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


@dataclass
class Layer:
    weight: Any
    bias: Any


DECLARED = {
    "blocks": [Layer(init.Declaration((4, 3), init.kaiming_uniform()), init.Declaration((4,), init.zeros))] * 2,
    "scale": init.Declaration((4, 3), init.kaiming_uniform()),
}


def test_build_makes_what_is_declared() -> None:
    params = init.build(DECLARED, dtype="float64", seed=7)
    first, second = params["blocks"]
    bound = math.sqrt(6 / 3)
    for weight in (first.weight, second.weight, params["scale"]):
        assert weight.shape == (4, 3)
        assert weight.dtype == np.float64
        assert (np.abs(weight) <= bound).all()
    assert (first.bias == 0).all()
    assert len({first.weight.tobytes(), second.weight.tobytes(), params["scale"].tobytes()}) == 3
    again = init.build(DECLARED, dtype="float64", seed=7)
    assert (again["scale"] == params["scale"]).all()
    assert (init.build(DECLARED, dtype="float64", seed=8)["scale"] != params["scale"]).any()


def test_a_parameters_values_depend_on_its_path_alone() -> None:
    alone = init.build({"scale": DECLARED["scale"]}, seed=7)
    assert (alone["scale"] == init.build(DECLARED, seed=7)["scale"]).all()
    seeded = init.kaiming_uniform(seed=init.parameter_seed(7, "scale"))
    assert (alone["scale"] == seeded.materialise((4, 3))).all()


def test_a_seed_of_ones_own_is_kept() -> None:
    arrays = init.Plan([init.uniform(0, 1, 5)] * 2).materialise([np.empty(3), np.empty(3)])
    assert (arrays[0] == arrays[1]).all()


def test_keys_name_every_leaf() -> None:
    tree = {"a": [0, 0], "b": 0}
    found = init.keys(3, tree)
    assert found == {
        "a": [init.parameter_seed(3, "a.0"), init.parameter_seed(3, "a.1")],
        "b": init.parameter_seed(3, "b"),
    }
    many = init.keys(3, {f"p{i}": 0 for i in range(2000)})
    assert len({*many.values(), *init.keys(4, {f"p{i}": 0 for i in range(2000)}).values()}) == 4000


def test_placements_say_what_each_parameter_gets() -> None:
    parameters = {"w": np.empty((2, 3)), "b": np.empty(2)}
    plan = init.Plan({"w": init.xavier_uniform(), "b": init.ones})
    bias, weight = plan.placements(parameters, seed=1)
    assert (bias.path, bias.shape, bias.initialiser) == ("b", (2,), init.ones)
    bound = math.sqrt(6 / 5)
    assert (weight.path, weight.shape) == ("w", (2, 3))
    assert weight.initialiser == init.Uniform(-bound, bound, init.parameter_seed(1, "w"))
    arrays = plan.materialise(parameters, dtype="float64", seed=1)
    assert (arrays["w"] == weight.materialise("float64")).all()


def test_a_list_follows_the_order_in_which_the_parameters_were_written() -> None:
    w, b = np.empty((2, 3)), np.empty(2)
    for parameters, plan in [
        ({"w": w, "b": b}, [init.ones, init.flat([7.0, 8.0])]),
        ({"b": b, "w": w}, [init.flat([7.0, 8.0]), init.ones]),
    ]:
        arrays = init.Plan(plan).materialise(parameters)
        assert arrays["b"].tolist() == [7.0, 8.0]
        assert (arrays["w"] == 1).all()


PARAMETERS = {"blocks": [{"w": np.empty((4, 3)), "b": np.empty(4)}], "head": np.empty((2, 4))}


@pytest.mark.parametrize(
    ("initialisers", "message"),
    [
        ([init.zeros] * 2, "the plan has 2 initialisers for 3 parameters: parameter head (2, 4) has none"),
        (
            [init.zeros] * 4,
            "4 initialisers for 3 parameters: initialiser 3, Constant(value=0.0), lacks a parameter",
        ),
        (
            {"blocks": [{"w": init.zeros}], "head": init.zeros},
            "the plan does not have the structure of the parameters: blocks.0.b is missing",
        ),
        (
            {"blocks": [{"w": init.zeros, "b": init.kaiming_uniform()}], "head": init.zeros},
            "parameter blocks.0.b: fans are inferred",
        ),
        (
            [init.flat([1.0]), init.zeros, init.zeros],
            "parameter blocks.0.w: flat has 1 values but shape (4, 3) needs 12",
        ),
    ],
)
def test_plan_errors_name_the_parameter(initialisers: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        init.Plan(initialisers).placements(PARAMETERS)


def test_plan_takes_initialisers_and_shapes_only() -> None:
    with pytest.raises(UsageError, match=r"the plan at b\.0 holds 0, which is not an initialiser"):
        init.Plan({"a": init.zeros, "b": [0]})
    with pytest.raises(UsageError, match="parameter a has no shape: it is 3; give an array or a Declaration"):
        init.Plan([init.zeros]).placements({"a": 3})
    with pytest.raises(UsageError, match=r"parameter b\.0 is not declared: it is 3, no Declaration"):
        init.build({"a": init.Declaration((2,), init.zeros), "b": [3]})
