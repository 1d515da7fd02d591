"""Groups, frozen parameters and callbacks as settings: in files, in Python and as flags; shown, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from opstage import callbacks, optim
from opstage.cli.train import train
from opstage.config import read_groups, write_groups
from opstage.ops.errors import UsageError
from opstage.optim.groups import Grouped
from opstage.runs.directory import BEST, CHECKPOINT
from opstage.runs.metrics_log import read_metrics
from opstage.runs.run import run_task
from opstage.runs.run_setup import prepare
from opstage.runs.settings import configure, configure_resumed
from opstage.training import checkpoint
from tests.runs.test_run import Quiet, configured
from tests.training.callback_program import all_bits

GROUPS = {"*.bias": {"weight_decay": 0.0}, "layers.0.*": {"lr": 1e-4, "lr_scale": 0.5}}
TEXT = "*.bias: weight_decay=0.0; layers.0.*: lr=0.0001, lr_scale=0.5"


def invoked(*words: str) -> Any:
    return CliRunner().invoke(train, ["mlp", "--model.hidden", "8", "--epochs", "2", *words])


def test_groups_are_a_text_and_back() -> None:
    assert (write_groups(GROUPS), read_groups(TEXT)) == (TEXT, GROUPS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*.bias", "expected PATTERN: NAME=NUMBER"),
        ("*.bias: decay", "'decay': expected PATTERN"),
        ("*.bias: lr=fast", "'fast' is not a number"),
        ("a: lr=1; a: lr=2", "'a' is given twice"),
        ("a: lr=1, lr=2", "expected PATTERN"),
    ],
)
def test_texts_that_are_no_groups(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_groups(text)


def test_every_source_means_the_same_groups(tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(
        '[optimizer.groups."*.bias"]\nweight_decay = 0.0\n[optimizer.groups."layers.0.*"]\nlr = 1e-4\nlr_scale = 0.5\n'
    )
    (tmp_path / "text.toml").write_text(f'[optimizer]\ngroups = "{TEXT}"\n')
    made = [
        configure("mlp", file=tmp_path / "tables.toml", environ={}),
        configure("mlp", file=tmp_path / "text.toml", environ={}),
        configure("mlp", values={"optimizer": {"groups": GROUPS}}, environ={}),
    ]
    assert {each.settings.optimizer.groups for each in made} == {TEXT}
    assert made[0].origins["optimizer.groups"] == f"{tmp_path / 'tables.toml'}:2"
    optimizer = made[0].settings.optimizer.make(100)
    assert isinstance(optimizer, Grouped)
    assert configure("mlp", values={}, environ={}).settings.optimizer.make(100) == optimizer.base
    (tmp_path / "kept.toml").write_text(made[0].toml())
    assert configure(file=tmp_path / "kept.toml", environ={}).settings == made[0].settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optimizer.groups", "*.bais: lr=1"], "optimizer group '*.bais' matches no parameter (did you mean"),
        (["--optimizer.groups", "*: momentum=1"], "--optimizer.groups: optimizer group '*': adamw has no momentum"),
        (["--optimizer.groups", "*.bias"], "--optimizer.groups: groups: '*.bias': expected PATTERN"),
        (["--optimizer.freeze", "*"], "optimizer.freeze '*' freezes every parameter, so nothing would be trained"),
        (["--optimizer.freeze", "enc*"], "optimizer.freeze 'enc*' matches no parameter"),
        (["--callbacks.best", "accuracy"], "best_checkpoint: argument folder: expected a folder"),
        (["--callbacks.best", "acuracy"], "acuracy"),
        (["--run.accumulate", "0"], "--run.accumulate: accumulate must be at least 1 but is 0"),
        (["--callbacks.patience", "0"], "--callbacks.patience: early_stopping: patience must be an int"),
        (["--callbacks.ema", "1"], "--callbacks.ema: ema: decay must be a number in"),
    ],
)
def test_what_does_not_fit_is_one_error_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")] if "folder" not in message else []
    result = invoked(*words, *out)
    text = str(result.exception)
    assert isinstance(result.exception, UsageError) and message in text and "\n" not in text, text
    assert not (tmp_path / "run").exists()


def test_a_table_of_what_moves_each_parameter() -> None:
    flags = ["--optimizer.groups", "*.bias: weight_decay=0", "--optimizer.groups", "layers.1.*: lr=1e-4"]
    shown = invoked(*flags, "--optimizer.freeze", "layers.0.weight", "--show-groups").output.splitlines()
    cells = {line.split()[0]: line.split("  ") for line in shown}
    assert shown[0].split() == ["parameter", "shape", "optimizer", "rate", "decay", "groups"]
    assert "frozen" in shown[1 + [line.split()[0] for line in shown[1:]].index("layers.0.weight")]
    row = [cell.strip() for cell in cells["layers.1.bias"] if cell.strip()]
    assert row == ["layers.1.bias", "(10,)", "adamw", "0.0001", "0", "*.bias, layers.1.*"]


def test_a_run_says_its_groups_and_its_report_has_the_table(tmp_path: Path) -> None:
    flags = ["--optimizer.groups", "*.bias: weight_decay=0", "--optimizer.freeze", "layers.0.weight"]
    result = invoked(*flags, "--out", str(tmp_path / "run"), "--run.plot", "false")
    assert result.exception is None, result.output
    assert "*.bias: 2 tensors, 18 parameters: adamw, lr 0.002, weight_decay 0\n" in result.output
    assert "in no group: 1 tensor, 512 parameters: frozen\n" in result.output
    report = (tmp_path / "run" / "report.html").read_text()
    assert '<h2 id="groups">' in report and '<td class="code">frozen</td>' in report
    snapshot = checkpoint.load(tmp_path / "run" / CHECKPOINT)
    assert snapshot.optimizer is not None and "layers.0.weight" not in snapshot.optimizer.slots


def test_the_norm_of_gradients_is_a_curve_and_changes_no_bit(tmp_path: Path) -> None:
    flags: dict[str, list[str]] = {"without": [], "beside": ["--run.gradient_norm", "true"]}
    for name, more in flags.items():
        result = invoked("--out", str(tmp_path / name), "--run.plot", "false", "--run.log_every", "2", *more)
        assert result.exception is None, result.output
    lines = {name: read_metrics(tmp_path / name / "metrics.jsonl") for name in flags}
    norms = [line.get("gradient_norm") for line in lines["beside"] if line["kind"] == "step"]
    assert norms and all(norm is not None and norm > 0 for norm in norms)
    assert not any("gradient_norm" in line for line in lines["without"])
    assert "gradient norm" in (tmp_path / "beside" / "report.html").read_text()
    kept = [checkpoint.load(tmp_path / name / CHECKPOINT).trainer.params for name in flags]
    for path, array in kept[0].items():
        assert array.tobytes() == kept[1][path].tobytes()


def test_an_optimizer_of_python_has_its_own_groups() -> None:
    from opstage.runs.run_setup import Provided

    settings = configure("mlp", values={"optimizer": {"groups": "*: lr=1"}}, environ={}).settings
    with pytest.raises(UsageError, match="leave optimizer"):
        prepare(settings, Provided(optimizer=optim.sgd(0.1)))


FOLLOWED = {"ema": 0.9, "best": "ema_accuracy", "plateau": 1, "patience": 2, "min_delta": 0.2}


def followed(out: Path, **run: Any) -> Any:
    optimizer = {"groups": "*.bias: weight_decay=0"}
    return configured(out, run={"epochs": 5, **run}, callbacks=FOLLOWED, optimizer=optimizer)


def test_a_run_with_all_of_it_stopped_again_and_again_ends_as_a_whole_one(tmp_path: Path) -> None:
    whole = followed(tmp_path / "whole")
    outcome = run_task(prepare(whole.settings), whole, lambda done, steps: Quiet())
    assert outcome.stopped and len(outcome.results) < 5
    assert checkpoint.load(tmp_path / "whole" / CHECKPOINT).position.lr_scale < 1
    parts, resume = followed(tmp_path / "parts"), False
    for _ in range(20):
        configuration = configure_resumed(tmp_path / "parts", environ={}) if resume else parts
        try:
            again = run_task(
                prepare(configuration.settings), configuration, lambda done, steps: Quiet(7), resume=resume
            )
        except KeyboardInterrupt:
            resume = True
            continue
        break
    assert again.stopped == outcome.stopped
    for folder in (CHECKPOINT, BEST):
        ends = [checkpoint.load(tmp_path / name / folder) for name in ("whole", "parts")]
        assert all_bits(ends[0]) == all_bits(ends[1])
    best = checkpoint.load(tmp_path / "parts" / BEST)
    values = [result.held_out["ema_accuracy"] for result in outcome.results]
    assert best.position.epoch - 1 == int(np.argmax(values))
    assert best.config["settings"]["run.model"] == '"mlp"'


def test_callbacks_of_python_follow_those_of_the_settings(tmp_path: Path) -> None:
    seen: list[str] = []
    mine = callbacks.EachEpoch(lambda loop, result: seen.append(",".join(sorted(result.held_out))))
    configuration = configured(tmp_path / "run", callbacks={"ema": 0.5})
    run_task(prepare(configuration.settings), configuration, lambda done, steps: Quiet(), callbacks=[mine])
    assert seen == ["accuracy,ema_accuracy,ema_loss,loss"] * 2


def test_a_run_whose_batches_are_computed_in_parts_is_the_same_run(tmp_path: Path) -> None:
    options = {"options": {"dtype": "float64"}, "model": {"hidden": (8,), "dropout": 0.0}}
    ends = []
    for name, run in (("whole", {}), ("parts", {"accumulate": 3})):
        configuration = configured(tmp_path / name, run=run, **options)
        run_task(prepare(configuration.settings), configuration, lambda done, steps: Quiet())
        ends.append(checkpoint.load(tmp_path / name / CHECKPOINT).trainer.params)
    for path, expected in ends[0].items():
        np.testing.assert_allclose(ends[1][path], expected, rtol=1e-10, atol=1e-12)
