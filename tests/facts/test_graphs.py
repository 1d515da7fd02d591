"""Facts of recorded graphs and of imported ONNX models are those of the programs that they came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
import opstage.onnx
from opstage import Options, Spec
from opstage.facts import Causal, Independent, RangeReport, Window, ranges_of, report_of, with_claims
from opstage.interpreters.graph.graph import Graph
from opstage.interpreters.shape_check.report import Report
from tests.facts.numerical_bugs import BUGS

pytest.importorskip("onnx")


def by_saved_graph(program: Any, specs: Sequence[Spec], folder: Path) -> Report:
    opstage.record(program, *specs).save(folder / "graph")
    return report_of(Graph.load(folder / "graph"))


def by_onnx(program: Any, specs: Sequence[Spec], folder: Path) -> Report:
    opstage.record(program, *specs).to_onnx(folder / "model.onnx")
    model = opstage.onnx.load(folder / "model.onnx")
    return opstage.check(model, model.params, *model.inputs.values(), train=False)


WAYS: dict[str, Callable[[Any, Sequence[Spec], Path], Report]] = {
    "graph": lambda program, specs, folder: report_of(opstage.record(program, *specs)),
    "saved graph": by_saved_graph,
    "onnx": by_onnx,
}


def found_by(way: str, program: Any, specs: Sequence[Spec], folder: Path, dtype: str) -> RangeReport:
    report = WAYS[way](program, specs, folder)
    assert report.ok, report
    names = [name for name in report.program.names if name]
    return ranges_of(report, {n: s.range for n, s in zip(names, specs) if s.range is not None}, dtype)


def rules(report: RangeReport) -> set[str]:
    return {finding.rule for finding in report.findings if finding.severity == "warning"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BUGS)
def test_ranges_are_those_of_the_program(name: str, way: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    for program in (bug.buggy, bug.fixed):
        source = ranges_of(opstage.check(program, *bug.specs), dtype=bug.dtype)
        found = found_by(way, program, bug.specs, tmp_path, bug.dtype)
        assert rules(found) == rules(source), (found, source)
        if way != "onnx":
            assert [range_.alone for _, range_ in found.outputs] == [range_.alone for _, range_ in source.outputs]
            lines = [[f.source and (f.source.file, f.source.line) for f in each.findings] for each in (found, source)]
            assert lines[0] == lines[1]


def attending(mask: Callable[[Any, Any, Any], Any], ops: Any, x: Any) -> Any:
    scores = x @ ops.permute(x, axes=(0, 2, 1))
    t, s = (ops.iota(shape=scores.shape, axis=axis) for axis in (1, 2))
    hidden = ops.full(shape=scores.shape, value=-math.inf, dtype=scores.dtype)
    return ops.softmax(ops.select(mask(ops, t, s), scores, hidden), axis=-1) @ x


CLAIMED = {
    "causal": partial(attending, lambda ops, t, s: s <= t),
    "sees one more": partial(attending, lambda ops, t, s: s <= t + 1),
    "a window": partial(attending, lambda ops, t, s: ops.logical_and(s <= t, t <= s + 2)),
    "samples mixed": lambda ops, x: x - ops.reduce_mean(x, axis=0, keepdims=True),
    "apart": lambda ops, x: ops.layer_norm(x, None, None),
}
CLAIMS = (Causal("T"), Independent("B"), Window("T", 2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLAIMED)
def test_verdicts_are_those_of_the_program(name: str, way: str, tmp_path: Path) -> None:
    specs = (Spec("B T 4"),)
    source = opstage.check(CLAIMED[name], *specs, claims=CLAIMS, train=False).claims
    found = with_claims(WAYS[way](CLAIMED[name], specs, tmp_path), CLAIMS).claims
    assert [verdict.state for verdict in found] == [verdict.state for verdict in source], (found, source)
    assert {verdict.state for verdict in source} & {"proved", "refuted"}


def test_the_step_of_a_graph_that_draws_is_no_argument() -> None:
    graph = opstage.record(lambda ops, x: x * ops.rand_uniform(shape=x.shape), Spec("B 4"), train=True)
    report = report_of(graph)
    assert report.program.names == ("x", "") and [name for name, _ in report.inputs] == ["x"]
    (_, range_), *_ = ranges_of(report, {"x": (-2, 1)}).outputs
    value = opstage.run(lambda ops, x: x * ops.rand_uniform(shape=x.shape), np.ones((3, 4)), options=Options())
    assert -2.1 < range_.low <= -2 and 1 <= range_.high < 1.1 and value.max() <= range_.high
