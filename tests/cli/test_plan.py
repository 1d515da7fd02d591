"""`opstage plan`: what it prints, and one clear line for each thing that cannot be used. No figure is measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from opstage import Model, Recipe
from opstage.runs import plan as planned
from opstage.runs.run_data import Loaded, load_data
from opstage.runs.settings import Settings
from tests.cli.conftest import Command, refusal
from tests.planning.flat import FLAT

MLP = ["mlp", "--model.hidden", "8"]
DEVICE = """
name = "half"
source = "made up"
bandwidth = 1e9
memory = 1_000_000_000
watts = 10
call = 1e-6
graph = 1e-7
flops = { float32 = 1e10 }
"""


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose rates need not be measured."""
    monkeypatch.setattr(planned, "machine_rates", lambda options: FLAT)


def test_a_table_by_block(opstage: Command) -> None:
    code, out, err = opstage("plan", *MLP, "--at", "B=16", "--steps", "1000")
    assert (code, err) == (0, "")
    assert out.startswith("mlp at B=16: a step of ")
    assert "layers.0" in out and "bound by" in out and "(step)" in out
    assert "1,000 steps: " in out and "kWh (100 W, an estimate)" in out
    assert "is the largest that fits 95.4 MiB" in out


def test_the_same_as_json(opstage: Command) -> None:
    code, out, err = opstage("plan", *MLP, "--at", "B=16", "--epochs", "2", "--json", "--backend", "compiled")
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert sum(row["ms"] for row in made["groups"]) == pytest.approx(made["step_ms"])
    assert (made["backend"], made["sizes"]) == ("compiled", {"B": 16})
    assert made["run"]["steps"] % 2 == 0 and made["run"]["hours"] == pytest.approx(
        made["run"]["steps"] * made["step_ms"] / 3.6e6
    )


def test_the_machine_is_measured_again_with_calibrate(opstage: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        importlib.import_module("opstage.cli.timing"), "machine_rates", lambda _, remeasure: asked.append(remeasure)
    )
    assert opstage("plan", *MLP, "--at", "B=16", "--calibrate")[0] == 0
    assert asked == [True]
    assert "leave one of them out" in refusal(opstage("plan", *MLP, "--at", "B=16", "--calibrate", "--on", "h100"))


def test_a_device_of_a_file(opstage: Command, tmp_path: Path) -> None:
    (tmp_path / "half.toml").write_text(DEVICE)
    code, out, err = opstage("plan", *MLP, "--at", "B=16", "--on", str(tmp_path / "half.toml"))
    assert (code, err) == (0, "")
    assert "by rates that are given: half (made up)" in out


def test_sizes_left_out_are_those_of_the_recipe(opstage: Command) -> None:
    assert "mlp at B=64: a step of" in opstage("plan", "mlp", "--on", "h100")[1]
    assert "mlp at B=8: a step of" in opstage("plan", "mlp", "--on", "h100", "--data.batch_size", "8")[1]
    assert "gpt at B=2, T=128: a step of" in opstage("plan", "gpt", "--on", "h100", "--at", "B=2")[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("flops = 3", "missing"),
        (DEVICE.replace("watts = 10", "watts = -1"), "watts: expected a number above 0, got -1"),
        (DEVICE.replace("watts", "wats"), "unknown key 'wats' (did you mean 'watts'?)"),
        (DEVICE.replace("float32", "float64"), "the peak for float32 is unknown"),
        (DEVICE.replace("= { float32 = 1e10 }", "= 1e10"), "expected a table"),
        ("name = ", "not a TOML file"),
        ("flops = " + "[" * 9999, "not a TOML file: maximum recursion"),
    ],
)
def test_files_of_devices_that_say_nothing_useful(opstage: Command, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "device.toml").write_text(text)
    assert why in refusal(opstage("plan", *MLP, "--at", "B=4", "--on", str(tmp_path / "device.toml")))


def test_epochs_of_a_recipe_load_its_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counted(settings: Settings, model: Model, recipe: Recipe) -> Loaded:
        loads.append(model.name)
        return load_data(settings, model, recipe)

    monkeypatch.setattr(planned, "load_data", counted)
    assert planned.plan("gpt", epochs=1).sizes["T"] and loads == ["gpt"]
