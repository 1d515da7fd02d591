"""The benchmarks: what they conclude from figures, what they refuse, and that both of our sides do the same."""

from __future__ import annotations

import copy
import os
import select
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import against_peers, guards, page, programs, recording, report, run_side, scaling, steady
from benchmarks.__main__ import MEASUREMENTS, parser
from benchmarks.plot import plot
from benchmarks.sides import opstage_compiled, opstage_eager
from benchmarks.workloads import ON_GPU, WORKLOADS, Chain, Cnn, Gpt, Lstm, Mlp
from tests.docs.blocks import ROOT


def side(ms: float, **more: Any) -> dict[str, Any]:
    return {"median_ms": ms, "working_bytes": 50e6, **more}


RECORD: dict[str, Any] = {
    "machine": {"processor": "Some CPU", "cores": 2, "packages": {"numpy": "2.0", "jax": None}},
    "rounds": 3,
    "seconds_per_round": 2.0,
    "workloads": {
        "mlp-s": {"flops": 1, "opstage_eager": side(2), "opstage_compiled": side(1), "torch_eager": side(4)},
        "gpt": {"flops": 1, "opstage_compiled": side(2), "torch_eager": side(6), "jax_jit": side(2, working_bytes=1e8)},
        "chain-9": {"flops": 1, "opstage_compiled": side(1), "torch_eager": side(100), "jax_jit": None},
    },
}


# What is concluded ----------------------------------------------------------------------------------------------------


def test_ratios_are_the_peers_figure_over_ours() -> None:
    first, second, chain = RECORD["workloads"].values()
    assert report.ratio(first, "opstage_eager", "torch_eager") == 2
    assert report.ratio(first, "opstage_compiled", report.BEST) == 4
    assert report.ratio(second, "opstage_compiled", report.BEST) == 1  # JAX is the best one
    assert report.ratio(second, "opstage_compiled", report.BEST, "working_bytes") == 1
    assert report.ratio(second, "opstage_eager", "torch_eager") is None
    assert report.ratio(chain, "opstage_compiled", "jax_jit") is None


def test_the_geometric_mean_is_over_what_is_trained() -> None:
    *rows, mean = report.ratio_rows(RECORD, "opstage_compiled")
    assert [row[0] for row in rows] == ["mlp-s", "gpt", "chain-9"]
    assert mean == ["geometric mean", "3.46", "-", "1.00", "2.00"]  # √(4·3), √1, √(4·1)
    assert report.geometric_mean([2.0, None, 8.0]) == pytest.approx(4)
    assert report.geometric_mean([]) is None


def test_the_tables_show_what_was_measured_alone() -> None:
    text = report.markdown(RECORD)
    assert "Some CPU, 2 cores, with numpy 2.0; rounds: 3, each of 2 s." in text
    assert "| `mlp-s` | 2.00 | 4.00 |" in text
    assert "| geometric mean | 2.00 | 2.00 |" in text
    assert "| `gpt` | - | 50 | 50 | - | 100 |" in text
    assert "first step" not in text
    more = copy.deepcopy(RECORD)
    more["workloads"]["gpt"]["jax_jit"]["cold_first_step_s"] = 3.21
    assert "| `gpt` | - | - | - | - | 3.2 / - |" in report.markdown(more)


def test_the_plot_has_a_bar_per_peer() -> None:
    drawn = ET.fromstring(plot(RECORD))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "2.00 torch_eager" in texts and "1.00 jax_jit" in texts
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 4
    assert not any("chain" in (text or "") for text in texts)


def test_the_power_of_growth() -> None:
    rows = [{"n": n, "linear": 3 * n, "square": n * n, "none": None} for n in (1, 10, 100)]
    assert recording.growth(rows, "linear") == pytest.approx(1)
    assert recording.growth(rows, "square") == pytest.approx(2)
    assert recording.growth(rows, "none") is None


def test_the_guide_has_the_tables_of_the_kept_record() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.filled(text), "run python -m benchmarks.page"


def test_a_page_without_marks_is_not_written() -> None:
    with pytest.raises(ValueError, match="the tables go between them"):
        page.filled("# Benchmarks\n")


def test_a_summary_is_of_the_rounds_that_ended() -> None:
    run = {"median_ms": 2.0, "best_ms": 1.0, "first_step_s": 3.0, "peak_bytes": 90, "imported_bytes": 40}
    run["losses"] = [1.0, 0.5]  # type: ignore[assignment]
    cold = {**run, "median_ms": None, "first_step_s": 9.0, "peak_bytes": 140}
    made = against_peers.summarise(cold, [run, {**run, "median_ms": 4.0, "imported_bytes": 30}, None])
    assert made is not None
    assert (made["median_ms"], made["medians_ms"], made["best_ms"]) == (3, [2, 4], 1)
    assert (made["cold_first_step_s"], made["warm_first_step_s"]) == (9, 3)
    assert (made["working_bytes"], made["cold_working_bytes"], made["peak_bytes"]) == (60, 100, 90)
    assert against_peers.summarise(cold, [None]) is None
    without = against_peers.summarise(None, [run])
    assert without is not None and without["cold_first_step_s"] is None


def test_one_step_of_a_side() -> None:
    started = time.time()
    figures = run_side.main("opstage_eager", "mlp-s", 0, started)
    assert figures is not None
    assert figures["peak_bytes"] >= figures["imported_bytes"] > 0 and figures["steps"] == 0
    assert figures["losses"][0] == figures["losses"][1] == pytest.approx(2.4055, abs=1e-3)


def test_a_record_of_a_gpu_is_kept_under_its_name(tmp_path: Path) -> None:
    """The times are of the same sides; the page says whose memory it is."""
    against_peers.keep({**RECORD, "gpu": "NVIDIA H200", "precision": "tf32"}, tmp_path)
    names = [f"nvidia-h200-tf32.{suffix}" for suffix in ("json", "md", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    text = (tmp_path / names[1]).read_text()
    assert text.startswith(
        "# Training steps on NVIDIA H200, tf32\n\nMeasured on NVIDIA H200, products in tf32; beside it"
    )
    assert "Peak GPU memory in MB:" in text and "| `mlp-s` | 2.00 |" in text


def test_a_gpu_has_a_workload_that_fills_it() -> None:
    given = parser().parse_args(["against_peers", "--device", "cuda"])
    assert against_peers.workloads_of(given) == [*WORKLOADS, "gpt2-s"]
    gpt = ON_GPU["gpt2-s"]
    assert (gpt.layers, gpt.heads, gpt.width, gpt.length, gpt.batch) == (12, 12, 768, 1024, 8)


def test_a_precision_is_of_a_gpu() -> None:
    with pytest.raises(SystemExit, match="--precision tf32 needs --device cuda"):
        against_peers.main(parser().parse_args(["against_peers", "--precision", "tf32"]))


# What is run ----------------------------------------------------------------------------------------------------------


def test_every_side_is_a_module() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks" / "sides").glob("[!_]*.py")}
    assert modules == set(report.SIDES)


def test_options_choose_a_part() -> None:
    words = ["--workloads", "gpt,cnn", "--sides", "torch_eager,opstage_compiled", "--rounds", "2", "--seconds", "0.5"]
    given = parser().parse_args(["against_peers", *words])
    assert given.workloads == ["cnn", "gpt"] and given.sides == ["opstage_compiled", "torch_eager"]
    assert (given.rounds, given.seconds, given.keep, given.no_cold) == (2, 0.5, False, False)
    whole = parser().parse_args(["against_peers"])
    assert against_peers.workloads_of(whole) == list(WORKLOADS) and whole.sides == list(report.SIDES)
    assert all(parser().parse_args([name]).name == name for name in MEASUREMENTS)


@pytest.mark.parametrize(
    ("words", "why"),
    (
        (["against_pears"], "invalid choice: 'against_pears'"),
        (["against_peers", "--workloads", "gtp"], "unknown name 'gtp' (did you mean 'gpt'?)"),
        (["against_peers", "--sides", ""], "unknown name ''"),
        (["against_peers", "--rounds", "0"], "expected a number above 0, got '0'"),
        (["against_peers", "--seconds", "nan"], "expected a number above 0, got 'nan'"),
        (["guards", "--kinds", "global"], "unknown name 'global' (did you mean 'globals'?)"),
        (["recording", "--longest", "many"], "expected a number above 0, got 'many'"),
    ),
)
def test_what_cannot_be_used_is_said(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(words)
    assert end.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "workload",
    (Mlp((4, 8, 3), 6), Cnn((2, 2), 4, 3, 2), Gpt(1, 2, 8, 4, 2, 5), Lstm(5, 2, 3, 4), Chain(30)),
    ids=lambda workload: type(workload).__name__,
)
def test_both_of_our_sides_take_the_same_steps(workload: Any) -> None:
    eager, compiled = opstage_eager.step(workload), opstage_compiled.step(workload)
    for _ in range(3):
        assert compiled() == pytest.approx(eager(), rel=1e-5)


def test_a_chain_is_recorded_op_by_op() -> None:
    assert len(recording.record(programs.chain(12)).body.equations) == 13
    assert recording.measure(12, compiled=False)["record_bytes"] > 0


@pytest.mark.parametrize("kind", guards.KINDS)
def test_guards_compare_every_place_that_a_program_reads(kind: str) -> None:
    """A change of any of three is seen while guards compare, and not while they do not."""
    call, held = guards.reading(kind, 3)
    assert call().tolist() == [1.5] * 4
    assert len(guards.guards_of(call)) == 1
    for key in held:
        holder = held[key]
        if isinstance(holder, list):
            holder[2] = 1.0
        elif isinstance(holder, guards.Holder):
            holder.a2 = 1.0  # type: ignore[attr-defined]
        elif key == "a2":
            held[key] = np.full(4, 1.0) if kind == "arrays" else 1.0
    with guards.compared(really=False):
        assert call().tolist() == [1.5] * 4
    assert call().tolist() == [2] * 4


def test_the_price_of_a_guard_is_told_of_calls_and_of_places(capsys: pytest.CaptureFixture[str]) -> None:
    guards.main(parser().parse_args(["guards", "--models", "mlp", "--most", "1", "--rounds", "2"]))
    head, *rows, verdict = capsys.readouterr().out.splitlines()
    assert head.split() == ["places", "with", "without", "added", "guard", "per", "place"]
    assert [row[:24].strip() for row in rows] == ["mlp, a step", *guards.KINDS]
    assert "the limit of 2 µs" in verdict


# Beside others -------------------------------------------------------------------------------------------------------


def test_what_is_slow_beside_others_is_held_to_the_quiet_time_on_one_thread() -> None:
    def run(median: float, percentile: float) -> dict[str, float]:
        return {"median_ms": median, "percentile_95_ms": percentile}

    runs = {
        "quiet, one thread": [run(2, 3), run(4, 4)],
        "quiet": [run(1, 1)],
        "busy, one thread": [run(4, 9)],
        "busy": [run(9, 99), run(3, 5)],
    }
    figures = steady.summarise(runs)
    assert figures["quiet, one thread"] == run(2, 3) and steady.ratios(figures) == (1.5, 2.5)
    assert steady.line("gpt", figures).split()[-6:] == ["1.50", "/", "2.50", "0.75", "/", "0.56"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_processes_that_keep_cores_busy_end_with_the_measurement(interrupted: bool) -> None:
    started: list[subprocess.Popen[str]] = []
    try:
        with steady.busy(2) as started:
            assert [process.poll() for process in started] == [None, None]
            if interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert interrupted
    assert len(started) == 2 and all(process.poll() is not None for process in started)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a system that does not tell when a process has ended")
def test_processes_that_keep_cores_busy_end_where_the_measurement_was_killed() -> None:
    text = (
        "import os, sys\nfrom benchmarks.steady import busy\n"
        "with busy(1) as (process,):\n    print(process.pid, flush=True)\n    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None and parent.stdin is not None
    with parent.stdout, parent.stdin:
        ended = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait()
            assert select.select([ended], [], [], 60)[0]
        finally:
            os.close(ended)


@pytest.mark.slow
def test_a_step_is_timed_quiet_and_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    steady.main(parser().parse_args(["steady", "--programs", "mlp-s", "--rounds", "1", "--seconds", "0.01"]))
    _, row, verdict = capsys.readouterr().out.splitlines()
    assert row.startswith("mlp-s") and row.count("ms") == len(steady.SIDES)
    assert "the limit of 2.5" in verdict


def test_the_table_of_scaling() -> None:
    """Efficiency of the same batch and of as many rows a process, CPU over that of the rows alone, bytes predicted."""
    ours = {
        "alone": {"median_ms": 10.0},
        "strong": {"median_ms": 6.25, "cpu_ms": 6.0, "sent": 100.0, "predicted": 100},
        "weak": {"median_ms": 12.5},
        "own rows": {"cpu_ms": 5.0},
    }
    theirs = {"alone": {"median_ms": 10.0}, "strong": {"median_ms": 10.0}, "weak": {"median_ms": 20.0}}
    head, compiled, torch = scaling.lines("gpt", {"compiled": ours, "torch": theirs}, 2)
    assert "6.25 ms, 80%" in compiled and "12.50 ms, 80%" in compiled
    assert "1.20 of its rows" in compiled and "OVER" not in compiled and "100, as predicted" in compiled
    assert "10.00 ms, 50%" in torch and "predicted" not in torch
    ours["strong"] |= {"cpu_ms": 6.5, "sent": 101.0}
    (_, compiled) = scaling.lines("gpt", {"compiled": ours}, 2)
    assert "1.30 of its rows OVER" in compiled and "NOT as predicted" in compiled
    best = scaling.better({"median_ms": 2.0, "cpu_ms": 1.0}, {"median_ms": 1.0, "cpu_ms": 3.0})
    assert best == {"median_ms": 1.0, "cpu_ms": 1.0}
    assert "strong on 2" in head
