"""Runs kept in a directory: interrupted and resumed ones end as uninterrupted ones; others are refused."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.config import Layer
from opstage.data import Batches, Prefetch
from opstage.models import cnn, mlp
from opstage.ops import errors
from opstage.ops.errors import OpstageError, UsageError
from opstage.runs import (
    Configuration,
    DataSettings,
    OptimizerSettings,
    RunOutcome,
    RunSettings,
    Settings,
    configure,
    train,
)
from opstage.runs import journal as journal
from opstage.runs.directory import CHECKPOINT
from opstage.runs.metrics_log import read_metrics
from opstage.runs.progress import Unwatched
from opstage.runs.run import run_task
from opstage.runs.run_setup import prepare
from opstage.runs.settings import configure_resumed
from opstage.training import checkpoint

SMALL = {
    "run": {"model": "mlp", "epochs": 2, "log_every": 3, "checkpoint_every": 4, "plot": False},
    "model": {"hidden": (8,)},
    "data": {"batch_size": 128},
}


class Killed(BaseException):
    """The end of a run that nobody handles."""


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    raise Killed


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Quiet(Unwatched):
    """A watcher that interrupts the run after a number of steps, if given one, or does something else to it."""

    def __init__(self, stop_after: int | None = None, stop: Callable[[], None] = interrupt):
        self.stop_after, self.stop = stop_after, stop
        self.seen = 0

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        self.seen += 1
        if self.seen == self.stop_after:
            self.stop()


def configured(out: Path, **more: Any) -> Configuration:
    values = {**SMALL, **more, "run": {**SMALL["run"], **more.get("run", {}), "out": str(out)}}
    return configure(values=values, environ={})


def started(configuration: Configuration, watcher: Quiet | None = None, *, resume: bool = False) -> RunOutcome:
    watcher = watcher if watcher is not None else Quiet()
    return run_task(prepare(configuration.settings), configuration, lambda done, steps: watcher, resume=resume)


def interrupted(configuration: Configuration, stop_after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        started(configuration, Quiet(stop_after))


def flags(**settings: str) -> list[Layer]:
    """Flags such as --run.epochs, given as run_epochs."""
    named = {name.replace("_", ".", 1): value for name, value in settings.items()}
    return [Layer(named, {path: f"--{path}" for path in named}, text=True)]


def resumed(out: Path, watcher: Quiet | None = None) -> RunOutcome:
    return started(configure_resumed(out, environ={}), watcher, resume=True)


def longer(out: Path, epochs: int, said: list[str]) -> RunOutcome:
    """The run gone on with for another number of epochs, and what it says."""
    again = configure_resumed(out, flags=flags(run_epochs=str(epochs)), environ={})
    return run_task(prepare(again.settings), again, lambda done, steps: Quiet(), resume=True, say=said.append)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines without what is measured."""
    lines = read_metrics(out / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key != "samples_per_second"} for line in lines]


def cutting() -> bool:
    """Whether a thread still cuts batches."""
    return any(thread.name == "opstage-prefetch" for thread in threading.enumerate())


def assert_same_checkpoint(left: Path, right: Path) -> None:
    a, b = checkpoint.load(left / CHECKPOINT), checkpoint.load(right / CHECKPOINT)
    for name, array in a.trainer.params.items():
        assert array.tobytes() == b.trainer.params[name].tobytes()
    assert a.optimizer is not None and b.optimizer is not None
    for name, slots in a.optimizer.slots.items():
        assert [slot.tobytes() for slot in slots] == [slot.tobytes() for slot in b.optimizer.slots[name]]
    assert a.position.epoch == b.position.epoch
    assert [r.held_out for r in a.position.results] == [r.held_out for r in b.position.results]


def test_a_run_keeps_what_it_says(tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = started(configured(out))
    assert sorted(p.name for p in out.iterdir()) == [
        "checkpoint", "config.toml", "metrics.jsonl", "origins.json", "report.html", "run.json"
    ]  # fmt: skip
    lines = metrics(out)
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", 3), ("step", 6), ("step", 9), ("epoch", 11), ("step", 12), ("step", 15), ("step", 18), ("step", 21),
        ("epoch", 22),
    ]  # fmt: skip
    assert lines[-1]["held_out"] == outcome.results[-1].held_out
    run = json.loads((out / "run.json").read_text())
    assert run["seed"] == 0
    assert run["versions"]["numpy"] == np.__version__
    assert run["data"]["training"]["rows"] == 1438
    assert configure(file=out / "config.toml", environ={}).settings == configured(out).settings
    page = (out / "report.html").read_text()
    assert "Finished: 2 of 2 epochs, 22 of 22 steps." in page
    assert re.sub("<template.*?</template>", "", page, flags=re.DOTALL).count("<polyline") == 6
    assert 'id="confusion"' in page
    assert "params.layers.0.weight (8, 64)" in page


def test_settings_made_in_python_are_the_same_run(tmp_path: Path) -> None:
    """The recipe is the command line's and `configure`'s; dataclasses say everything themselves."""
    settings = Settings(
        run=RunSettings(model="mlp", epochs=2, log_every=3, checkpoint_every=4, plot=False, out=tmp_path / "python"),
        data=DataSettings(batch_size=128),
        model=mlp.Config(hidden=(8,)),
        optimizer=OptimizerSettings(lr=2e-3, weight_decay=0.05),
    )
    outcome = train(settings)
    started(configured(tmp_path / "file"))
    assert metrics(tmp_path / "python") == metrics(tmp_path / "file")
    assert_same_checkpoint(tmp_path / "python", tmp_path / "file")
    assert len(outcome.results) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(run=RunSettings(model="mlp")), r"for model mlp but hold a Config of opstage\.models\.cnn; give"),
        (Settings(model=cnn.Config(dense="wide")), r"model\.dense: 'wide' is not an integer"),  # type: ignore[arg-type]
        (Settings(run=RunSettings(model="nlp")), r"unknown model 'nlp' \(did you mean 'mlp'\?\)"),
    ],
)
def test_settings_of_wrong_types_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(settings)


@pytest.mark.parametrize("stop", [2, 5, 11, 15])
def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path: Path, stop: int) -> None:
    """Steps 1-11 are the first epoch; lines are written every 3 steps, checkpoints every 4."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    started(configured(whole))
    interrupted(configured(cut), stop)
    assert checkpoint.load(cut / CHECKPOINT).trainer.steps_taken == stop
    assert "Interrupted after" in (cut / "report.html").read_text()
    again = Quiet()
    resumed(cut, again)
    assert again.seen == 22 - stop
    assert metrics(cut) == metrics(whole)
    assert_same_checkpoint(whole, cut)


@pytest.mark.parametrize("stop", [5, 11])
def test_batches_cut_ahead_are_the_same_run(tmp_path: Path, stop: int) -> None:
    """Interrupted with batches in hand, and resumed with another number of them, none included."""
    whole = tmp_path / "whole"
    started(configured(whole))
    for resumed_with in ("3", "0"):
        cut = tmp_path / f"cut-{resumed_with}"
        configuration = configured(cut, data={"batch_size": 128, "prefetch": 2})
        assert isinstance(prepare(configuration.settings).batches, Prefetch)
        interrupted(configuration, stop)
        assert not cutting()
        again = Quiet()
        started(configure_resumed(cut, flags=flags(data_prefetch=resumed_with), environ={}), again, resume=True)
        assert again.seen == 22 - stop
        assert metrics(cut) == metrics(whole)
        assert_same_checkpoint(whole, cut)
    assert not cutting()


def test_an_error_of_the_thread_that_cuts_is_the_run_s(tmp_path: Path) -> None:
    class Torn:
        def __init__(self, batches: Batches):
            self.batches = batches

        def __len__(self) -> int:
            return len(self.batches)

        def epoch(self, epoch: int, start: int = 0) -> Generator[Any]:
            for number, batch in enumerate(self.batches.epoch(epoch, start), start):
                if number == 6:
                    raise UsageError("shard.npz: row 768 is torn")
                yield batch

    configuration, watcher = configured(tmp_path / "run"), Quiet()
    task = prepare(configuration.settings)
    task = replace(task, batches=Prefetch(Torn(task.batches), 2))
    with pytest.raises(UsageError, match=r"^shard\.npz: row 768 is torn$"):
        run_task(task, configuration, lambda done, steps: watcher)
    assert watcher.seen == 6
    assert checkpoint.load(tmp_path / "run" / CHECKPOINT).trainer.steps_taken == 4
    assert not cutting()


def test_a_number_of_batches_ahead_is_not_negative(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="prefetch must be a number of batches, 0 for none ahead, but is -1"):
        configured(tmp_path / "run", data={"prefetch": -1})


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """As SIGKILL leaves it: lines beyond the checkpoint, the last one torn, and no final save."""

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    started(configured(whole))
    with pytest.raises(Killed):
        started(configured(cut), Quiet(10, kill))
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    again = Quiet()
    resumed(cut, again)
    assert again.seen == 22 - 8
    assert metrics(cut) == metrics(whole)
    assert_same_checkpoint(whole, cut)


def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    started(configured(tmp_path / "a"))
    watcher = Quiet()
    before = metrics(tmp_path / "a")
    assert len(resumed(tmp_path / "a", watcher).results) == 2
    assert watcher.seen == 0
    assert metrics(tmp_path / "a") == before


def test_a_run_that_never_saved_starts_over(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        started(configured(tmp_path / "a"), Quiet(1, kill))
    watcher = Quiet()
    resumed(tmp_path / "a", watcher)
    assert watcher.seen == 22


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    interrupted(configured(out), 2)
    return out


@pytest.mark.parametrize(
    ("model", "environ", "message"),
    [
        ("cnn", {}, "holds a run of mlp, but the argument MODEL says cnn; leave that out"),
        (None, {"OPSTAGE_DTYPE": "float64"}, r'options.dtype = "float32", but environment variable OPSTAGE_'),
    ],
)
def test_another_model_or_configuration_is_refused(
    finished: Path, model: str | None, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        configure_resumed(finished, model, environ=environ)
    assert configure_resumed(finished, "mlp", environ={}).settings.run.model == "mlp"


def test_a_configuration_edited_by_hand_is_refused(finished: Path) -> None:
    file = finished / "config.toml"
    file.write_text(file.read_text().replace("hidden = [8]", "hidden = [9]"))
    with pytest.raises(UsageError, match=r"its model.hidden is \[8\], but the run's configuration says \[9\]"):
        resumed(finished)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_damaged_description_of_the_run_is_one_error(finished: Path, text: str | None) -> None:
    (finished / "run.json").unlink()
    if text is not None:
        (finished / "run.json").write_text(text)
    with pytest.raises(UsageError, match=r"run\.json: cannot be read"):
        resumed(finished)


@pytest.fixture
def from_everywhere(tmp_path: Path) -> Path:
    """An interrupted run whose settings came from a file, the environment, a flag, the recipe and the defaults."""
    file, out = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text("[model]\nhidden = [8]\n[run]\nplot = false\n")
    given = flags(run_epochs="2", run_out=str(out))
    configuration = configure("mlp", file=file, flags=given, environ={"OPSTAGE_SEED": "4"})
    interrupted(configuration, 2)
    return out


FIRST = {
    "run.model": "the argument MODEL",
    "run.epochs": "--run.epochs",
    "run.out": "--run.out",
    "run.log_every": "default",
    "options.seed": "environment variable OPSTAGE_SEED",
    "optimizer.lr": "recipe of mlp",
}


def test_a_resumed_run_names_the_first_origins(from_everywhere: Path) -> None:
    file = from_everywhere.parent / "mine.toml"
    expected = {**FIRST, "model.hidden": f"{file}:2", "run.plot": f"{file}:4"}
    for _ in range(2):
        resumed = configure_resumed(from_everywhere, environ={})
        assert {path: resumed.origins[path] for path in expected} == expected
        assert not any("config.toml" in origin for origin in resumed.origins.values())
        started(resumed, resume=True)
        page = (from_everywhere / "report.html").read_text()
        assert "environment variable OPSTAGE_SEED" in page
        assert "config.toml:" not in page


def test_what_a_resumed_run_is_told_anew_has_its_own_origin(from_everywhere: Path) -> None:
    given = flags(run_log_every="5", run_epochs="2")
    resumed = configure_resumed(from_everywhere, flags=given, environ={"OPSTAGE_SEED": "4"})
    expected = {**FIRST, "run.log_every": "--run.log_every"}
    assert {path: resumed.origins[path] for path in expected} == expected
    config = from_everywhere / "config.toml"
    config.write_text(config.read_text().replace("log_every = 10 ", "log_every = 6 "))
    assert configure_resumed(from_everywhere, environ={}).origins["run.log_every"] == f"{config}:5"


def test_a_run_without_kept_origins_names_its_own_file(from_everywhere: Path) -> None:
    (from_everywhere / "origins.json").unlink()
    resumed = configure_resumed(from_everywhere, environ={})
    assert resumed.origins["run.epochs"] == f"{from_everywhere / 'config.toml'}:3"
    assert resumed.origins["run.out"] == "--resume"


@pytest.mark.parametrize("text", ["{", "[]", '{"run.epochs": 3}', '{"run.epochs": {"value": "2"}}'])
def test_damaged_origins_are_one_error(from_everywhere: Path, text: str) -> None:
    (from_everywhere / "origins.json").write_text(text)
    with pytest.raises(
        UsageError, match=r"origins\.json: cannot be read as the origins of a run's settings: .*; without"
    ):
        configure_resumed(from_everywhere, environ={})


X, Y = np.random.default_rng(0).random((300, 1, 8, 8), np.float32), np.arange(300) % 10


def test_other_data_are_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "d.npz", tmp_path / "run"
    np.savez(file, x=X, y=Y)
    interrupted(configured(out, data={"file": str(file), "batch_size": 64}), 1)
    before = sorted(out.rglob("*"))
    np.savez(file, x=X * 2, y=Y)
    with pytest.raises(
        UsageError, match=r"cannot be resumed: its training data have changed since: 240 rows \(x <f4 \[240"
    ):
        resumed(out)
    assert sorted(out.rglob("*")) == before
    np.savez(file, x=X, y=Y)
    resumed(out)


def test_a_run_is_resumed_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    monkeypatch.chdir(tmp_path)
    interrupted(configured(Path("run"), data={"file": "d.npz", "batch_size": 64}), 1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    resumed(Path("../run"))
    assert (tmp_path / "run" / "report.html").read_text().count("Finished") == 1


def test_a_full_disk_in_the_middle_is_one_error_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        started(configured(out), Quiet(6, lambda: monkeypatch.setattr(os, "fsync", full)))
    monkeypatch.undo()
    assert checkpoint.load(out / CHECKPOINT).trainer.steps_taken == 4
    assert not list(out.rglob("*.tmp"))
    resumed(out)


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(configured(tmp_path / "run").settings)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        run_task(task, configured(tmp_path / "run"), lambda done, steps: Quiet())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "is_installed", lambda package: False)
    monkeypatch.setattr(journal, "is_installed", lambda package: False)
    for setting, extra in (("plot", "plot"), ("tensorboard", "tensorboard")):
        with pytest.raises(UsageError, match=rf"pip install 'opstage\[{extra}\]'"):
            started(configured(tmp_path / "run", run={setting: True}))
        assert list(tmp_path.iterdir()) == []
    said: list[str] = []
    configuration = configured(tmp_path / "run", run={"plot": None, "epochs": 1})
    run_task(prepare(configuration.settings), configuration, lambda done, steps: Quiet(), say=said.append)
    assert said == ["no loss.png: matplotlib is not installed; pip install 'opstage[plot]'"]


def test_plot_and_events_are_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    out = tmp_path / "run"
    started(configured(out, run={"plot": True, "tensorboard": True}))
    png = (out / "loss.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20], "big") > 1000
    (file,) = out.glob("events.out.tfevents.*")
    found: dict[str, list[int]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    assert found["held_out/accuracy"] == found["loss/epoch"] == [11, 22]
    assert found["loss/step"] == found["lr"] == [3, 6, 9, 12, 15, 18, 21]


def test_events_after_a_resume_replace_those_beyond_the_checkpoint(tmp_path: Path) -> None:
    """TensorBoard drops what a file before has at or after the step of a new session's start."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    out = tmp_path / "run"
    interrupted(configured(out, run={"tensorboard": True}), 7)
    (before,) = out.glob("events.out.tfevents.*")
    resumed(out)
    (after,) = set(out.glob("events.out.tfevents.*")) - {before}
    events = list(EventFileLoader(str(after)).Load())
    assert [event.step for event in events if event.session_log.status == SessionLog.START] == [8]
    assert {event.step for event in events if event.summary.value} == {9, 11, 12, 15, 18, 21, 22}


@pytest.mark.parametrize("schedule", ["constant", "warmup_cosine"])
def test_a_run_is_extended(tmp_path: Path, schedule: str) -> None:
    """With a constant rate it ends as one that was to be so long from the first; a schedule has the new length."""
    values: dict[str, Any] = {"optimizer": {"schedule": schedule}}
    started(configured(tmp_path / "short", **values))
    said: list[str] = []
    longer(tmp_path / "short", 4, said)
    whole = configured(tmp_path / "whole", **values, run={"epochs": 4})
    started(whole)
    lines = [line for line in metrics(tmp_path / "short") if line["kind"] == "step"]
    task = prepare(whole.settings)
    half = task.steps // 2
    for line in lines:
        if line["step"] > half:
            assert line["lr"] == task.optimizer.scalars(line["step"])["lr"]
    if schedule == "constant":
        assert said[0] == f"goes on to 4 epochs, {task.steps} steps, where it was to have 2 epochs"
        assert_same_checkpoint(tmp_path / "short", tmp_path / "whole")
        assert metrics(tmp_path / "short") == metrics(tmp_path / "whole")
    else:
        rate = f"{task.optimizer.scalars(half + 1)['lr']:.3g}"
        assert f"the schedule warmup_cosine is one of {task.steps} steps now, its rate {rate} from here" in said[0]
    kept = configure_resumed(tmp_path / "short", environ={})
    assert (kept.settings.run.epochs, kept.origins["run.epochs"]) == (4, "--run.epochs")


def test_a_run_that_was_stopped_early_goes_on_for_longer(tmp_path: Path) -> None:
    """What stopped it counts anew, against the best that it knows; without more epochs the run stays ended."""
    stopping = {"callbacks": {"patience": 1, "min_delta": 1e9}}
    outcome = started(configured(tmp_path / "run", **stopping, run={"epochs": 3}))
    assert len(outcome.results) == 2 and "has not become better" in outcome.stopped
    for epochs, done in ((3, 2), (8, 3), (9, 4)):
        said: list[str] = []
        outcome = longer(tmp_path / "run", epochs, said)
        assert len(outcome.results) == done and outcome.stopped
        assert [("waits anew from here" in line) for line in said] == ([] if epochs == 3 else [True])
    assert [line["epoch"] for line in metrics(tmp_path / "run") if line["kind"] == "epoch"] == [0, 1, 2, 3]


@pytest.mark.parametrize("stop", [None, 13])
def test_a_run_is_not_cut_short(tmp_path: Path, stop: int | None) -> None:
    out = tmp_path / "run"
    if stop is None:
        started(configured(out))
    else:
        interrupted(configured(out), stop)
    before = (out / "config.toml").read_bytes()
    message = r"cannot be resumed for 1 epochs: it has (2 epochs done|begun its epoch 2); ask"
    with pytest.raises(UsageError, match=message):
        longer(out, 1, [])
    assert (out / "config.toml").read_bytes() == before


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": {"accumulate": 2, "accumulate_by": "nope"}}, "weighs the parts of a batch by the metric 'nope'"),
        ({"options": {"mesh": "data=3"}}, "cannot share batches"),
    ],
)
def test_what_is_unusable_at_the_first_step_leaves_no_run(
    tmp_path: Path, existing: bool, changed: dict[str, Any], message: str
) -> None:
    """The same command, corrected, starts the run; files that were there before stay."""
    out = tmp_path / "run"
    if existing:
        out.mkdir()
        (out / "mine.txt").write_text("")
    right = {**SMALL, "run": {**SMALL["run"], "epochs": 1, "out": out, "tensorboard": False}}
    wrong = {**right, **{name: {**right.get(name, {}), **table} for name, table in changed.items()}}
    with pytest.raises(OpstageError, match=message):
        train(configure("mlp", values=wrong, environ={}))
    assert [each.name for each in tmp_path.rglob("*")] == (["run", "mine.txt"] if existing else [])
    train(configure("mlp", values=right, environ={}))
    assert (out / "config.toml").exists()
