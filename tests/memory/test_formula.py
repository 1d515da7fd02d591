"""The peak as a formula: the same as at numbers, and solved for the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Options, Spec, optim
from opstage.interpreters.shape_check.peak_memory import Formula, _upper
from opstage.models import MODELS, gpt, model
from opstage.ops.errors import UsageError
from opstage.training.memory import StepMemory, model_memory, step_memory
from opstage.training.sizes import around

ADAMW = optim.adamw(lr=1e-3)


ROUNDED = {"cnn": 0.007, "gpt": 5e-4, "mlp": 2e-4, "unet": 2e-5, "vit": 2e-4}
"""Models at whose peak a sum works in blocks, as many as sizes say, or in scratch of whole cache lines: a formula has
those of moderate sizes."""


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_formula_is_the_prediction_at_all_sizes(name: str) -> None:
    memory = model_memory(model(name), ADAMW)
    formula = memory.formula()
    assert set(formula.names) == set(memory.names)
    for batch in (1, 2, 7, 16, 33, 500, 4000):
        for length in (1, 32, 100) if name == "gpt" else (0,):
            sizes = {"B": batch, "T": length} if length else {"B": batch}
            assert formula(sizes) == pytest.approx(memory.at(**sizes).peak, rel=ROUNDED.get(name, 0), abs=0), sizes


def test_a_formula_of_one_name_leaves_the_others_in() -> None:
    memory = model_memory(model("gpt"), ADAMW)
    assert memory.formula(T=64).names == ("B",)
    found = memory.formula(T=64)({"B": 24}), memory.formula(B=24)({"T": 64})
    assert found == pytest.approx((memory.at(B=24, T=64).peak,) * 2, rel=ROUNDED["gpt"], abs=0)


def product(ops: Any, params: Any, x: Any) -> Any:
    """A loss: the sum of x·wᵀ."""
    return ops.sum(ops.linear(params, None, x))


def test_the_text_of_a_formula() -> None:
    """The batch takes 32·B bytes and the product 16·B; the parameter, its gradient and its new value 128 each."""
    memory = step_memory(product, Spec((4, 8)), Spec("B 8"), optimizer=optim.sgd(lr=0.1))
    assert str(memory.formula()) == "max(32*B + 392, 48*B + 136)"
    assert (memory.at(B=2).peak, memory.at(B=100).peak) == (32 * 2 + 392, 48 * 100 + 136)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "gpt"])
def test_the_largest_batch_fits_and_one_more_does_not(name: str) -> None:
    memory = model_memory(model(name), ADAMW)
    rest = {"T": 64} if name == "gpt" else {}
    largest = memory.largest("B", "300MB", **rest)
    assert memory.at(B=largest, **rest).peak <= 300_000_000 < memory.at(B=largest + 1, **rest).peak
    assert memory.formula(**rest)({"B": largest}) <= 300_000_000


def test_the_largest_batch_of_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose guesses from a few rows are drawn nearer, so that it takes few plans."""
    memory, planned = model_memory(model("mlp"), ADAMW, Options(backend="compiled")), StepMemory.plan
    plans: list[int] = []
    monkeypatch.setattr(StepMemory, "plan", lambda self, **sizes: plans.append(sizes["B"]) or planned(self, **sizes))
    for limit in (20 << 20, 1 << 30):
        plans.clear()
        largest = memory.largest("B", limit)
        assert len(plans) <= 8, plans
        assert memory.at(B=largest).peak <= limit < memory.at(B=largest + 1).peak


@pytest.mark.parametrize("where", [("B % 8 == 0",), ("B <= 40",), ("B % 8 == 0", "B < 1000"), ("B >= 30", "50 >= B")])
def test_the_largest_size_that_is_allowed_in_a_compiled_step(where: tuple[str, ...]) -> None:
    memory = step_memory(product, Spec((4, 8)), Spec("B 8", where=where), options=Options(backend="compiled"))
    plain = step_memory(product, Spec((4, 8)), Spec("B 8"), options=Options(backend="compiled"))
    assert memory.largest("B", 100_000) == max(
        size for size in range(1, plain.largest("B", 100_000) + 1) if all(eval(each, {"B": size}) for each in where)
    )


def test_the_largest_size_is_one_that_is_allowed() -> None:
    def largest(*where: str) -> int:
        memory = step_memory(product, Spec((4, 8)), Spec("B 8", where=where), optimizer=ADAMW)
        return memory.largest("B", 1_000_320)

    assert largest() % 8 == 7
    assert largest("B % 8 == 0") == largest() - 7
    assert largest("B <= 100") == largest("B >= 50", "100 >= B") == 100
    assert largest("B % 8 == 0", "B < 100") == 96
    assert largest("B >= 1000") == largest()


def test_the_length_is_bounded_by_the_model() -> None:
    assert model_memory(model("gpt"), ADAMW).largest("T", "64GiB", B=1) == 128


def test_a_deep_model_has_a_short_formula() -> None:
    made = gpt.make(gpt.Config(length=256, width=64, depth=24, heads=4, hidden=256))
    assert len(model_memory(made, ADAMW).formula().terms) <= 8


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param(lambda memory: memory.at(B=4), r"depends on T: give a number, T=…", id="size-missing"),
        pytest.param(lambda memory: memory.at(b=4, T=8), "does not have a size 'b'; it has B, T", id="size-unknown"),
        pytest.param(lambda memory: memory.at(B=4, T=129), "T <= 128 does not hold", id="size-too-large"),
        pytest.param(lambda memory: memory.largest("B", "1GiB"), "depends on T", id="largest-size-missing"),
        pytest.param(lambda memory: memory.largest("B", "1GiB", B=3, T=4), "B is the size to find", id="largest-set"),
        pytest.param(
            lambda memory: memory.largest("B", "1MiB", T=8),
            r"not even B=1, T=8 fits 1.0 MiB: it takes 2\d\.\d MiB",
            id="largest-none",
        ),
    ],
)
def test_memory_of_a_query_without_an_answer_is_refused(query: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        query(model_memory(model("gpt"), ADAMW))


def test_memory_of_an_unsupported_interpreter_is_refused() -> None:
    with pytest.raises(UsageError, match="objects of Python"):
        model_memory(model("mlp"), ADAMW, Options(dtype="exact"))
    with pytest.raises(UsageError, match="planned at numbers"):
        model_memory(model("mlp"), ADAMW, Options(backend="compiled")).formula()


# Of polynomials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_leaving_out_polynomials_never_changes_the_greatest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 50, (60, 3))
    line = np.linspace(0, 1, 9)[:, None] * np.array([40, -40, 10]) + np.array([5, 60, 5])  # as layer after layer has it
    rows = np.concatenate([rows, line.astype(np.int64)])
    upper = _upper(rows)
    weights = rng.uniform(0, 10, (1000, 3)) ** rng.integers(0, 4, (1000, 1))
    assert np.max(upper @ weights.T, axis=0) == pytest.approx(np.max(rows @ weights.T, axis=0))
    assert len(upper) <= len(rows) / 3


def test_a_formula_of_numbers() -> None:
    assert str(Formula([1234567])) == "1,234,567"
    assert Formula([3, 5])({}) == 5


@pytest.mark.parametrize("last", [0, 1, 2, 7, 8, 100, 999, 1000])
@pytest.mark.parametrize("guess", [1, 8, 99, 100, 101, 5000])
def test_the_last_that_fits_is_found_from_any_guess(last: int, guess: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= last

    assert around(guess, 1000, fits) == last
    assert all(1 <= size <= 1000 for size in asked)
    if guess == last < 1000:
        assert len(asked) == 2
