"""Architectures and single ops written twice: one meaning on both sides, and what is concluded from their figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import page
from benchmarks.__main__ import parser
from benchmarks.architectures import measure, side
from benchmarks.architectures.branches import Inception, Video
from benchmarks.architectures.images import DiffusionUnet, Generator, Style
from benchmarks.architectures.language import RotaryGpt, Translator
from benchmarks.architectures.sequences import T5, LongLstm, MemoryScan, SelectiveScan, Speech, Wavenet
from benchmarks.architectures.tables import Dlrm, Experts, Flow, Graph
from benchmarks.architectures.vision import Aspp, ConvNext, Dqn, InvertedResiduals, Stage, Vit
from benchmarks.architectures.zoo import ZOO
from benchmarks.each_op import measure as each_op
from benchmarks.each_op import side as op_side
from benchmarks.each_op.table import TABLE
from benchmarks.report import RESULTS, geometric_mean

STAGES = Stage(4, 8, 4, 3, 1), Stage(4, 8, 6, 5, 2)
TINY: dict[str, Any] = {
    "dqn": Dqn(2, 8, 3),
    "deeplab-aspp": Aspp(2, 4, 3, 5, 3),
    "style-transfer": Style(1, 16, 2),
    "mobilenetv3": InvertedResiduals("hardswish", "hardsigmoid", 2, 16, STAGES),
    "efficientnet": InvertedResiduals("silu", "sigmoid", 2, 16, STAGES),
    "convnext": ConvNext(2, 16, 4, 1),
    "inception": Inception(2, 9, 4),
    "video": Video(1, 3, 6, 2),
    "vit": Vit(2, 16, 8, 2, 1),
    "dcgan": Generator(2, 3, 2),
    "diffusion-unet": DiffusionUnet(1, 8, 4, 2),
    "gru-ctc": Speech(9, 2, 2, 4),
    "lstm-500": LongLstm(5, 2, 3),
    "wavenet": Wavenet(2, 12, 3, 2),
    "t5": T5(2, 6, 8, 2, 1, 11, 2),
    "rotary-gpt": RotaryGpt(2, 5, 8, 4, 2, 6, 1, 11),
    "translator": Translator(4, 2, 3, 7),
    "mamba-scan": SelectiveScan(5, 2, 4, 3),
    "ntm-scan": MemoryScan(4, 2, 3, 5, 4, 3),
    "experts": Experts(12, 4, 6, 3),
    "graph": Graph(7, 15, 3, 4),
    "dlrm": Dlrm(4, 3, 5, 2),
    "flow": Flow(5, 4, 6, 2),
}


def trained(step: Callable[[], float], steps: int = 3) -> list[float]:
    return [step() for _ in range(steps)]


# Architectures --------------------------------------------------------------------------------------------------------


def test_every_architecture_has_a_tiny_one() -> None:
    assert list(TINY) == list(ZOO)
    assert {name: type(each) for name, each in TINY.items()} == {name: type(each) for name, each in ZOO.items()}


@pytest.mark.parametrize("name", TINY)
def test_a_program_trains_as_its_module(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    params = side.parameters(side.module_of(TINY[name]))
    losses = trained(side.their_step(TINY[name]))
    assert trained(side.our_step(TINY[name], params, "eager")) == pytest.approx(losses, rel=2e-4)


def test_our_sides_take_the_same_steps_where_there_is_no_pytorch() -> None:
    rng = np.random.default_rng(3)
    shapes = {
        "a.weight": (4, 3),
        "a.bias": (4,),
        "b.weight": (4, 4),
        "b.bias": (4,),
        "c.weight": (10, 4),
        "c.bias": (10,),
    }
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    eager = trained(side.our_step(TINY["graph"], {**params}, "eager"))
    assert trained(side.our_step(TINY["graph"], {**params}, "compiled")) == pytest.approx(eager, rel=1e-5)
    assert eager[2] < eager[0]


def sides(ours: list[float]) -> dict[str, Any]:
    return {
        "torch": {"losses": [2.0, 1.0], "step_ms": 6.0},
        "eager": {"losses": [2.0, 1.0], "step_ms": 8.0},
        "compiled": {"losses": ours, "step_ms": 4.0},
    }


def test_ratios_under_their_goal_are_marked() -> None:
    row = measure.figures("graph", sides([2.0001, 1.01]))
    assert (row["eager_ratio"], row["compiled_ratio"]) == (0.75, 1.5)
    assert measure.line("graph", row).split() == ["graph", "6.00", "8.00", "0.75*", "4.00", "1.50"]
    assert measure.verdict({"graph": row}) == (
        "eager: 0 of 1 reach 1.0, geometric mean 0.75; compiled: 1 of 1 reach 1.2, geometric mean 1.50"
    )


@pytest.mark.parametrize(
    ("ours", "step"), (([2.01, 1.0], 1), ([float("nan"), 1.0], 1), ([2.0, 1.1], 2), ([2.0, float("nan")], 2))
)
def test_models_that_differ_are_not_measured(ours: list[float], step: int) -> None:
    with pytest.raises(SystemExit, match=f"graph: in step {step} PyTorch's loss is .*, that of compiled"):
        measure.figures("graph", sides(ours))


def test_the_list_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    measure.main(parser().parse_args(["architectures", "--list"]))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ZOO)


# Single ops -----------------------------------------------------------------------------------------------------------


def test_an_op_is_measured_with_its_gradients() -> None:
    """Of the weighted sum of 1 - x the gradient is the weights, negative."""
    found = op_side.main("eager", ["1 - x"], 1)["1 - x"]
    (x,) = TABLE["1 - x"].draw()
    weights = op_side.weights(x.shape)
    (result, _), gradient = found["seen"]
    assert result == pytest.approx(abs(np.sum((1 - x) * weights)), rel=1e-4)
    assert gradient == pytest.approx(op_side.seen(-weights))
    assert found["ms"] > 0


def test_elements_in_other_places_are_seen() -> None:
    there = np.random.default_rng(2).standard_normal(1000)
    (norm, product), (same, other) = op_side.seen(there), op_side.seen(there[::-1])
    assert norm == pytest.approx(same) and abs(product - other) > each_op.CLOSE * norm


def op_sides(seen: list[tuple[float, float]]) -> dict[str, Any]:
    theirs = {"seen": [(1.0, 0.5), (5.0, 0.0)], "ms": 1.0}
    return {"torch": theirs, "eager": {**theirs, "ms": 4.0}, "compiled": {"seen": seen, "ms": 0.5}}


def test_ops_that_are_slow_are_marked() -> None:
    row = each_op.ratios(op_sides([]))
    assert each_op.line("pad", row).split() == ["pad", "1.000", "0.25*", "2.00"]
    assert each_op.verdict({"pad": row}).splitlines() == [
        "eager: geometric mean 0.25, 1 of 1 under 0.5 (pad)",
        "compiled: geometric mean 2.00, 0 of 1 under 0.5 (none)",
    ]


@pytest.mark.parametrize(
    ("compiled", "of"),
    (
        ([(1.0, 0.5), (5.001, 0.001)], None),
        ([(1.1, 0.5), (5.0, 0.0)], "the result"),
        ([(1.0, 0.5), (5.0, 0.1)], "the gradient of argument 1"),
        ([(1.0, 0.5), (float("nan"), 0.0)], "the gradient of argument 1"),
    ),
)
def test_ops_that_differ_are_named(compiled: list[tuple[float, float]], of: str | None) -> None:
    said = each_op.difference(op_sides(compiled))
    assert said is None if of is None else said is not None and said.startswith(f"DIFFERS: {of} has the norm ")


def test_ops_are_chosen_by_a_word() -> None:
    given = parser().parse_args(["each_op", "--only", "softmax", "--rounds", "1"])
    assert len(given.only) > 2 and all("softmax" in name for name in given.only)
    assert parser().parse_args(["each_op"]).only == list(TABLE)
    with pytest.raises(SystemExit):
        parser().parse_args(["each_op", "--only", "no such op"])


def test_the_guide_has_the_figures_of_the_kept_record() -> None:
    rows = json.loads((RESULTS / "each_op.json").read_text())["ops"]
    assert list(rows) == list(TABLE)
    lines = page.PAGE.read_text(encoding="utf-8").splitlines()
    for backend in each_op.OURS:
        ratios = [row[f"{backend}_ratio"] for row in rows.values()]
        low = sum(ratio < each_op.LOW for ratio in ratios)
        assert f"| {backend} | {geometric_mean(ratios):.2f} | {low} |" in lines


@pytest.mark.slow
@pytest.mark.parametrize("backend", each_op.OURS)
@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row.is_random])
def test_an_op_is_the_one_of_pytorch(name: str, backend: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs, ours = op_side.theirs(TABLE[name], True)(), op_side.ours(TABLE[name], True, backend)()
    seen = {"torch": {"seen": list(map(op_side.seen, theirs))}}
    seen |= {side: {"seen": list(map(op_side.seen, ours))} for side in each_op.OURS}
    assert each_op.difference(seen) is None
