"""Runs side by side: by their directories alone, as they stand."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opstage import __version__
from opstage.ops.errors import UsageError
from opstage.runs import configure, train
from opstage.runs.charts import Curve
from opstage.runs.metrics_log import read_metrics
from opstage.runs.run_comparison import DIFFERENT_DATA, RunRecord, compare_runs, comparison_html
from tests.cli.conftest import Command, opstage  # noqa: F401


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a/run` and `b/run`, of other rates and widths."""
    folder = tmp_path_factory.mktemp("runs")
    for name, hidden, lr, epochs in (("a", 4, 1e-3, 2), ("b", 8, 1e-2, 3)):
        values: dict[str, Any] = {
            "run": {"epochs": epochs, "plot": False, "out": str(folder / name / "run")},
            "model": {"hidden": (hidden,)},
            "optimizer": {"lr": lr},
        }
        train(configure("mlp", values=values, environ={}))
    return folder


def test_what_they_reached_and_in_what_they_differ(runs: Path) -> None:
    both = compare_runs([runs / "a" / "run", runs / "b" / "run"])
    head, a, b = both.results
    assert head == ("run", "parameters", "epochs", "training loss", "held-out accuracy", "held-out loss")
    assert (a[0], a[2], b[0], b[2]) == ("a/run", "2 of 2", "b/run", "3 of 3")
    last = read_metrics(runs / "b" / "run" / "metrics.jsonl")[-1]
    assert b[4:] == (f"{100 * last['held_out']['accuracy']:.2f} %", f"{last['held_out']['loss']:.4g}")
    assert both.settings == [
        ("", "a/run", "b/run"),
        ("run.epochs", "2", "3"),
        ("model.hidden", "[4]", "[8]"),
        ("optimizer.lr", "0.001", "0.01"),
    ]
    assert both.data == [("", "a/run", "b/run")] and both.are_comparable


def test_one_run_says_its_data_and_versions(runs: Path, opstage: Command) -> None:  # noqa: F811
    code, out, err = opstage("report", str(runs / "a" / "run"), "-o", "one.html")
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert lines["version of opstage"] == __version__ and lines["training data"].startswith("1438 rows")
    page = comparison_html(compare_runs([runs / "a" / "run"]))
    assert "version of opstage" in page and "that differ" not in page


def test_curves_lie_over_each_other(runs: Path) -> None:
    panels = {panel.name: panel for panel in compare_runs([runs / "a" / "run", runs / "b" / "run"]).panels()}
    assert set(panels) == {
        "loss, training, single steps", "loss, training, mean of epoch", "loss, held-out", "accuracy in %, held-out",
        "learning rate", "samples per second",
    }  # fmt: skip
    accuracy = panels["accuracy in %, held-out"].curves
    assert [(curve.name, len(curve.points)) for curve in accuracy] == [("a/run", 2), ("b/run", 3)]


def test_a_run_keeps_its_colour_where_it_has_no_curve(runs: Path) -> None:
    both = compare_runs([runs / "a" / "run", runs / "b" / "run"])
    lines = [line for line in both.runs[0].curves.lines if line["kind"] == "step"]
    cut = RunRecord("a", both.runs[0].settings, both.runs[0].run, type(both.runs[0].curves)(lines))
    panels = {panel.name: panel for panel in type(both)((cut, both.runs[1])).panels()}
    assert panels["loss, held-out"].curves[0] == Curve("a", ())
    assert 'class="curve c1" points="' in comparison_html(type(both)((cut, both.runs[1])))
    assert cut.results["epochs"] == "0 of 2"


def _cut_line(run: Path) -> None:
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def _other_data(run: Path) -> None:
    held = json.loads((run / "run.json").read_text())
    held["data"]["held_out"]["rows"] = 7
    (run / "run.json").write_text(json.dumps(held))


def test_half_a_line_of_a_run_that_goes_on_is_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a" / "run", tmp_path / "run")
    _cut_line(tmp_path / "run")
    (one,) = compare_runs([tmp_path / "run"]).runs
    assert one.results["epochs"] == "1 of 2"


def test_other_held_out_data_are_told(runs: Path, tmp_path: Path) -> None:
    """Metrics on other samples do not compare, whatever their names."""
    shutil.copytree(runs / "a" / "run", tmp_path / "run")
    _other_data(tmp_path / "run")
    both = compare_runs([runs / "a" / "run", tmp_path / "run"])
    assert not both.are_comparable and both.data[1][0] == "held-out data"
    assert DIFFERENT_DATA in comparison_html(both)


@pytest.mark.parametrize("value", ["2020-01-01", "[[1, {a = 2}]]", "nan", "12:00:00", '"\\u001b[31m"'])
def test_a_setting_that_no_run_writes_is_shown_all_the_same(
    opstage: Command,  # noqa: F811
    runs: Path,
    tmp_path: Path,
    value: str,
) -> None:
    shutil.copytree(runs / "a" / "run", tmp_path / "odd")
    (tmp_path / "odd" / "config.toml").write_text(f"[odd]\nx = {value}\n")
    code, out, _ = opstage("report", str(runs / "a" / "run"), str(tmp_path / "odd"), "-o", "page.html")
    assert code == 0 and "odd.x" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: shutil.rmtree(run), r"cannot be reported: config\.toml is missing"),
        (lambda run: (run / "config.toml").unlink(), r"cannot be reported: config\.toml is missing"),
        (lambda run: (run / "config.toml").write_text("[run"), "config"),
        (lambda run: (run / "run.json").unlink(), r"cannot be reported: run\.json is missing"),
        (lambda run: (run / "run.json").write_text("{"), "cannot be read as the description of a run"),
        (lambda run: (run / "run.json").write_text('{"data": {}, "parameters": "x"}'), "parameters: expected a number"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n{}\n"), r"metrics\.jsonl:1"),
    ],
)
def test_a_directory_that_cannot_be_reported_is_one_error(
    opstage: Command,  # noqa: F811
    runs: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    message: str,
) -> None:
    shutil.copytree(runs / "a" / "run", tmp_path / "broken")
    damage(tmp_path / "broken")
    code, _, err = opstage("report", str(runs / "a" / "run"), str(tmp_path / "broken"), "-o", "page.html")
    assert code == 2 and err.count("\n") == 1 and re.search(message, err)
    assert not (tmp_path / "page.html").exists()


def test_one_named_twice_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        compare_runs([runs / "a" / "run", runs / "b" / ".." / "a" / "run"])


def test_the_command_prints_a_table_and_writes_a_page(opstage: Command, runs: Path, tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = opstage("report", str(runs / "a" / "run"), str(runs / "b" / "run"), "-o", "page.html")
    assert code == 0
    lines = out.splitlines()
    assert re.match(r"run +parameters +epochs +training loss +held-out accuracy +held-out loss$", lines[0])
    assert re.search(r"^optimizer\.lr +0\.001 +0\.01$", out, re.MULTILINE) and lines[-1] == "wrote page.html"
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="panel"') == 6 and "optimizer.lr" in page
