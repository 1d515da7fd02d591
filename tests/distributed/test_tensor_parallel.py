"""Layers whose weights the ranks share out: the numbers of one rank, errors, and whole parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.models import gpt, model, parallel, vit
from opstage.ops.loss import IGNORED
from opstage.training.validate import check_step
from tests.distributed.compared import adamw_steps, trainer_of

CONFIG = gpt.Config(width=16, depth=2, heads=4, hidden=32, length=8)
MESHES = ("model=2", "model=4", "data=2,model=2", "model=2,data=2", "data=1,model=2", "data=2,model=1")


def trained(made: Any, mesh: str, rows: list[Any], **options: Any) -> tuple[list[float], list[Any]]:
    return adamw_steps(trainer_of(made, Options(dtype="float64", mesh=mesh, **options)), rows)


def texts(count: int = 3) -> list[Any]:
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 256, (4, 8)) for _ in range(2)] for _ in range(count)]


def _compare(made: Any, mesh: str, rows: list[Any], **options: Any) -> None:
    alone, leaves = trained(made, "", rows)
    losses, others = trained(made, mesh, rows, **options)
    np.testing.assert_allclose(losses, alone, rtol=1e-12)
    for found, expected in zip(others, leaves, strict=True):
        assert found.shape == expected.shape  # whole, whatever the mesh
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
def test_gpt_has_the_numbers_of_one_rank(mesh: str) -> None:
    _compare(model("gpt", CONFIG), mesh, texts())


@pytest.mark.parametrize("changes", [{"tie_weights": True}, {"dropout": 0.2}], ids=str)
def test_with_tied_weights_and_with_dropout(changes: Any) -> None:
    _compare(
        model("gpt", gpt.Config(width=16, depth=1, heads=2, hidden=16, length=8, **changes)), "data=2,model=2", texts()
    )


def test_a_compiled_step_of_gpt_too() -> None:
    _compare(model("gpt", replace(CONFIG, depth=1)), "data=2,model=2", texts(2), backend="compiled")


def test_labels_that_do_not_count() -> None:
    """On one of the two data ranks there are fewer of them."""
    rows = texts()
    rows[0][1][0, 1:] = rows[1][1][3, :] = IGNORED
    _compare(model("gpt", CONFIG), "data=2,model=2", rows)


def test_blocks_of_another_model_share_too() -> None:
    made = model("vit", vit.Config())
    rng = np.random.default_rng(0)
    shape = [int(e) if str(e).isdecimal() else 4 for e in made.batch[0].entries]
    rows = [[rng.standard_normal(shape), rng.integers(0, 10, 4)]]
    _compare(made, "model=2", rows)


@pytest.mark.parametrize("place", [0, 1], ids=["byte", "label"])
def test_a_number_that_is_no_byte_is_an_error(place: int) -> None:
    """No rank has it, and none may pass it over."""
    made = model("gpt", CONFIG)
    rows = texts(1)[0]
    rows[place][1, 2] = 256
    with pytest.raises(opstage.OpstageError, match="256"):
        trained(made, "data=2,model=2", [rows])


def test_the_step_is_proved_for_every_number_of_ranks() -> None:
    made = model("gpt", CONFIG)
    text, labels = made.batch
    held = Spec(text.shape, text.dtype, (*text.where, "4 % M == 0"))
    report = check_step(
        made.loss, made.init, held, labels, optimizer=optim.adamw(), options=Options(mesh="data=N,model=M")
    )
    assert report.ok  # what 4 % M == 0 leaves open, such as 256 % M == 0, is said, and holds
    assert report.at(N=2, M=4, B=8, T=4).ok and report.at(N=3, M=2, B=9, T=4).ok
    assert {(s.name, s.axis) for s in report.traffic.sendings} == {
        ("all_reduce", "data"),
        ("all_reduce", "model"),
        ("all_max", "model"),
        ("all_gather", "model"),
    }
    open_ = check_step(made.loss, made.init, text, labels, options=Options(mesh="data=N,model=M"))
    assert "4 % M == 0" in open_.suggestions
    three = check_step(made.loss, made.init, text, labels, options=Options(mesh="model=3"))
    assert "3 ranks of mesh axis 'model' cannot share 4 heads equally" in str(three)


def _without_the_sum(ops: Any, params: Any, x: Any) -> Any:
    h = parallel.column_linear(ops, params["up"], None, x)
    return ops.reduce_mean(ops.linear(parallel.part(ops, params["down"], 1), None, h))


def _twice(ops: Any, params: Any, x: Any) -> Any:
    h = parallel.column_linear(ops, params["up"], None, x)
    out = parallel.row_linear(ops, params["down"], params["b"], h)
    return ops.reduce_mean(ops.all_reduce(out, axis="model"))


def _plain(ops: Any, params: Any, x: Any) -> Any:
    return ops.reduce_mean(ops.linear(params["down"], params["b"], ops.linear(params["up"], None, x)))


@pytest.mark.parametrize(
    "loss, message",
    [
        (_without_the_sum, r"the loss differs between the ranks of mesh axis 'model'"),
        (_twice, r"all ranks of mesh axis 'model' have the same x"),
        (_plain, r"the program does not use mesh axis 'model'"),
    ],
)
def test_a_wrong_program_is_named(loss: Any, message: str) -> None:
    params = {"up": np.ones((4, 3)), "down": np.ones((3, 4)), "b": np.ones(3)}
    how = Options(mesh="data=2,model=2", dtype="float64", validate=False)
    trainer = opstage.scalar_trainer(loss, params, options=how)
    with pytest.raises(opstage.OpstageError, match=message):
        trainer.step(0.1, np.ones((4, 3)))
    assert not check_step(loss, params, Spec("B 3"), options=Options(mesh="data=N,model=2")).ok
