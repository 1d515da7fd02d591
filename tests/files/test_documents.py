"""Plain data read with its types checked: whatever is altered is one UsageError that names the place."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opstage.files import Document, plain_number
from opstage.ops.errors import UsageError
from opstage.runs.directory import ORIGINS, RUN, first_origins, read_run
from opstage.runs.metrics_log import MetricLog, read_metrics
from opstage.training.checkpoint import MANIFEST, load, restore, save
from tests.training import resume_program as program
from tests.training.test_checkpoint import batch, rewrite, snapshot

ODD: list[Any] = [None, True, -1, 2**70, 1.5, "3", "", [], [[]], {}, {"a": 1}, math.nan, "nan", "x" * 1000, "\x1b[31m"]


def altered(value: Any, others: list[Any] = ODD) -> Iterator[Any]:
    """The document with one value taken out, or another in its place, for each value of it."""

    def places(inner: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        keys = inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        for key in keys:
            yield (*path, key)
            yield from places(inner[key], (*path, key))

    for path in places(value, ()):
        for odd in [*others, ...]:
            changed = copy.deepcopy(value)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if odd is ...:
                del holder[path[-1]]
            else:
                holder[path[-1]] = odd
            yield changed


def refused_or(work: Callable[[], object]) -> bool:
    """Whether it is refused, as it must be if it raises at all."""
    try:
        work()
    except UsageError as error:
        assert len(str(error)) < 2000 and "\x1b" not in str(error)
        return True
    return False


@pytest.mark.parametrize("value", [0.5, 0, 3, -2, 1e308])
def test_numbers(value: float) -> None:
    assert Document(value, "d").number() == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not(value: float) -> None:
    kept = json.loads(json.dumps({"x": plain_number(value)}, allow_nan=False))
    assert repr(Document(kept, "d")["x"].number()) == repr(value)


@pytest.mark.parametrize("value", [None, True, "3", [], {}, 2**60, "nano"])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^f: x: expected a number but found .*; do this$"):
        Document({"x": value}, "f", "do this")["x"].number()


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, 2**60])
def test_what_is_no_count(value: Any) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 0 on"):
        Document(value, "f").count()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, b"\xff\xfe", "nope"])
def test_what_is_no_document(text: str | bytes) -> None:
    with pytest.raises(UsageError, match=r"^f: "):
        Document.of(text, "f")


LINES = [
    {"kind": "step", "step": 10, "epoch": 0, "loss": 1.5, "lr": 0.1, "samples_per_second": 3.0},
    {"kind": "epoch", "step": 12, "epoch": 0, "train_loss": 1.25, "held_out": {"loss": 1.0}, "samples_per_second": 3.0},
]


def write_lines(path: Path, lines: list[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_altered_lines_of_metrics(tmp_path: Path) -> None:
    from opstage.runs.charts import Curves

    path = tmp_path / "m.jsonl"
    for lines in altered(LINES):
        write_lines(path, lines)
        if not refused_or(lambda: MetricLog(path, steps=20, epochs=1, most=2).close()):
            Curves(read_metrics(path)).panels()


@pytest.mark.parametrize("tail", ["", "\0" * 100, '{"kind"', "nonsense\nmore\n", json.dumps(LINES[0]) + "\n"])
def test_what_comes_after_the_lines_of_the_checkpoint_is_dropped_whatever_it_is(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "m.jsonl"
    write_lines(path, LINES)
    with path.open("a") as file:
        file.write(tail)
    log = MetricLog(path, steps=12, epochs=1, most=2)
    assert log.count == 2
    log.append(LINES[0])
    log.sync()
    assert log.count == 3
    log.close()
    assert read_metrics(path) == [*LINES, LINES[0]]


def test_lines_that_a_loss_of_power_took_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_lines(path, LINES[:1])
    with path.open("a") as file:
        file.write('{"kind": "ep')
    log = MetricLog(path, steps=12, epochs=1, most=2)
    assert log.count == 1
    log.close()


def test_altered_manifests_are_refused_or_of_the_types_that_a_step_needs(tmp_path: Path) -> None:
    save(tmp_path, snapshot())
    original = json.loads((tmp_path / MANIFEST).read_text())
    trainer = program.make_trainer()
    kept = {key: original[key] for key in ("steps_taken", "moments", "optimizer", "position", "versions", "config")}
    accepted = 0
    for changed in altered(kept, [None, True, -1, 1.5, "3", [], {"a": 1}]):
        rewrite(tmp_path, lambda document, changed=changed: document.update(changed) or _drop(document, changed, kept))

        def go_on() -> None:
            state = restore(trainer, load(tmp_path), program.OPTIMIZER)
            assert state is not None
            trainer.train_step(program.OPTIMIZER, state, *batch(1))

        accepted += not refused_or(go_on)
        (tmp_path / MANIFEST).write_text(json.dumps(original))
    assert accepted > 5, "numbers in the place of numbers"


def _drop(document: dict[str, Any], changed: dict[str, Any], kept: dict[str, Any]) -> None:
    for key in kept.keys() - changed.keys():
        del document[key]


def test_altered_descriptions_and_origins(tmp_path: Path) -> None:
    arrays = {"x": "<f4 [3, 1] sha256:" + "0" * 64}
    run = {"data": {"training": {"rows": 3, "arrays": arrays}, "held_out": {"rows": 1, "arrays": arrays}}, "seed": 0}
    for changed in altered(run):
        (tmp_path / RUN).write_text(json.dumps(changed))
        refused_or(lambda: read_run(tmp_path / RUN))
    origins = {"run.epochs": {"value": "2", "origin": "--epochs"}}
    for changed in altered(origins):
        (tmp_path / ORIGINS).write_text(json.dumps(changed))
        refused_or(lambda: first_origins(tmp_path / ORIGINS, {"run.epochs": "2"}, {"run.epochs": "default"}))
