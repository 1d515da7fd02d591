"""The bytes that a step sends are those that a check predicts, process by process; and each process's share is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sent import sent_by_processes
from opstage import Options, Spec, optim
from opstage.models import gpt, model
from opstage.ops.mesh import Mesh
from opstage.runs import run as running
from opstage.runs.processes import Processes
from opstage.runs.run_setup import prepare
from opstage.runs.settings import configure
from opstage.training.fit import EpochResult
from tests.distributed.compared import rows_of, trainer_of
from tests.distributed.threads import Threads, on_processes

SMALL = gpt.Config(width=32, depth=1, heads=2, hidden=64, length=16, dropout=0.1)
RULE = optim.adamw(lr=1e-3)


@pytest.mark.parametrize(
    "name, mesh, counts, options",
    [
        ("mlp", "data=4", (2, 4), {"bucket_size": "0"}),
        ("mlp", "data=4", (2, 4), {"bucket_size": "0", "zero": 2}),
        ("mlp", "data=6", (3, 6), {"bucket_size": "0", "zero": 3}),
        ("mlp", "data=2", (2,), {}),
        ("mlp", "data=2", (2,), {"bucket_size": "100KiB"}),
        ("mlp", "data=2", (2,), {"bucket_size": "100KiB", "backend": "compiled"}),
        ("gpt", "data=2,model=2", (2, 4), {"bucket_size": "0", "zero": 3}),
        pytest.param("gpt", "model=2,data=2", (4,), {"bucket_size": "0"}, marks=pytest.mark.slow),
        pytest.param("cnn", "data=3", (3,), {"bucket_size": "0", "zero": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_step_sends_what_is_predicted(name: str, mesh: str, counts: tuple[int, ...], options: Any) -> None:
    made = model(name, SMALL) if name == "gpt" else model(name)
    batch = rows_of(made.batch, np.random.default_rng(0), 12)
    how = Options(mesh=mesh, **options)

    def run(transport: Threads) -> list[int]:
        trainer = trainer_of(made, how)
        state, sent = trainer.init_optim(RULE), []
        for _ in range(2):
            before = transport.sent
            trainer.advance(RULE, state, *batch)
            sent.append(transport.sent - before)
        return sent

    specs = [Spec(each.shape, "int64" if each.dtype.kind == "i" else None) for each in batch]
    report = trainer_of(made, how).report(*specs, optimizer=RULE)
    assert report.ok, report
    for count in counts:
        predicted = sent_by_processes(report.program, Mesh.parse(mesh), count)
        assert on_processes(count, run) == [[each, each] for each in predicted]
        assert min(predicted) > 0
    assert sent_by_processes(report.program, Mesh.parse(mesh), 1) == (0,)
    if mesh == "data=2":  # of more than two, small sums are sent whole, in one message in place of two
        assert sent_by_processes(report.program, Mesh.parse(mesh), 2) == (report.traffic.sent,) * 2


def test_each_process_tells_its_share() -> None:
    def run(transport: Threads) -> Any:
        shares = Processes(transport, Mesh.parse("data=4"))
        for epoch in range(2):
            shares.epoch(EpochResult(epoch, 1.0, {}, 2.0 + transport.process, 10))
        return shares.lines(), shares.data()

    (lines, data), other = on_processes(2, run)
    assert (lines, data) == other
    assert [share["ranks"] for share in data] == [[0, 1], [2, 3]]
    assert [share["seconds"] for share in data] == [4.0, 6.0]
    assert all(share["sent"] > 0 and share["waited"] == 0 for share in data)
    assert "ranks 2-3: 6.0 s, of which it waited 0.0 s; sent" in lines[1]


def test_the_journal_and_the_report_have_a_table(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def run(transport: Threads) -> Any:
        words = {
            "run": {"out": out, "epochs": 1, "plot": False},
            "options": {"mesh": "data=2"},
            "data": {"batch_size": 256},
        }
        configuration = configure("mlp", values=words)
        task = prepare(configuration.settings)
        return running.run_task(task, configuration, lambda done, steps: running.Unwatched()).shares

    first, second = on_processes(2, run)
    assert first == second and len(first) == 2
    *_, epoch = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert [share["ranks"] for share in epoch["processes"]] == [[0, 0], [1, 1]]
    assert all(share["sent"] > 10_000 for share in epoch["processes"])
    assert '<h2 id="processes">' in (out / "report.html").read_text()
