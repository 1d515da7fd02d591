"""Claims that every number is finite: true of random programs at extreme inputs, made of safe programs, and not of
their unsafe twins."""

from __future__ import annotations

import random
from typing import Any

import pytest

import opstage
from opstage import Spec
from opstage.facts import RangeReport, ranges_of
from tests.facts.finite_programs import drawn, refuted
from tests.facts.twin_programs import TWINS
from tests.searches import MARKS, share


def read(program: Any, *specs: Spec, **more: Any) -> RangeReport:
    report = opstage.check(program, *specs, train=False)
    assert report.ok, report
    return ranges_of(report, **more)


@pytest.mark.parametrize("name", TWINS)
def test_a_safe_program_is_proved_finite_and_its_twin_is_remarked_upon(name: str) -> None:
    twins = TWINS[name]
    safe, unsafe = read(twins.safe, *twins.specs), read(twins.unsafe, *twins.specs)
    assert safe.safe and not safe.unbounded, safe
    assert unsafe.findings and not unsafe.safe, unsafe


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=MARKS)])
def test_no_random_program_refutes_its_claim(backend: Any) -> None:
    rng, claimed = random.Random(31), 0
    for at in range(60 if backend == "eager" else share(400)):
        program, specs, words = drawn(rng, rng.choice([1, 2, 3, 4]))
        claim, wrong = refuted(random.Random(at), program, specs, backend)
        assert not wrong, (words, wrong)
        claimed += claim
    assert claimed > 10


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=MARKS) for seed in range(4)])
def test_no_random_program_of_many_refutes_its_claim(seed: int) -> None:
    rng = random.Random(seed)
    for at in range(share(4000)):
        program, specs, words = drawn(rng, rng.choice([2, 3, 4, 5]))
        _, wrong = refuted(random.Random(at), program, specs, "eager")
        assert not wrong, (words, wrong)


T = Spec("T", range=(0, 1e38))
COUNTED = {
    "three": (Spec("3", range=(0, 1e38)), True),
    "at most three": (Spec("T", range=(0, 1e38), where=("T <= 3",)), True),
    "at most four": (Spec("T", range=(0, 1e38), where=("T <= 4",)), False),
    "no bound": (T, False),
    "no bound, of small numbers": (Spec("T", range=(0, 1)), True),
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("op", ["sum", "reduce_mean", "cumsum", "matmul"])
def test_sums_take_as_many_terms_as_a_size_allows(name: str, op: str) -> None:
    spec, safe = COUNTED[name]

    def program(ops: Any, x: Any) -> Any:
        if op == "matmul":
            row = ops.reshape(x, shape=(1, x.shape[0]))
            return row @ ops.full(shape=(x.shape[0], 2), value=1.0)
        return ops.cumsum(x, axis=0) if op == "cumsum" else getattr(ops, op)(x)

    found = read(program, spec)
    assert found.safe == safe and bool(found.findings) != safe, found


UNKNOWN: dict[str, Any] = {
    "power": lambda ops, x: ops.power(ops.abs(x), ops.abs(x)),
    "mod": lambda ops, x: ops.mod(x, x),
    "cumprod": lambda ops, x: ops.cumprod(x, axis=0),
    "reduce_prod": lambda ops, x: ops.reduce_prod(x, axis=0),
    "floor_divide": lambda ops, x: ops.floor_divide(x, x),
    "cast": lambda ops, x: ops.cast(x, dtype="int32"),
    "solve": lambda ops, x: ops.solve(ops.reshape(x, shape=(2, 2)), ops.full(shape=(2, 1), value=1.0)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_bounded_is_remarked_upon(name: str) -> None:
    assert read(UNKNOWN[name], Spec("4")).findings


def test_outputs_without_a_bound_are_named() -> None:
    def program(ops: Any, x: Any) -> Any:
        return {"square": x * x, "share": ops.softmax(x, axis=1), "norm": ops.layer_norm(x, None, None)}

    assert read(program, Spec("B 4")).unbounded == ("output.norm", "output.square")
    assert read(program, Spec("B 4", range=(-9, 9))).unbounded == ()
