"""Which code a model is: its own files, as they were when they were imported, whatever else this process has loaded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.data import from_arrays

MODEL = """
import opstage
from helper import FACTOR
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    width: int = 2

def outputs(ops, params, x):
    return ops.scale(ops.reduce_sum(x, axis=(1,)), c=FACTOR)

def loss(ops, params, x, y):
    return ops.mse_loss(outputs(ops, params, x), ops.mul(y, ops.broadcast_to(params["w"], shape=y.shape)))

def make(config):
    parameters = {"w": opstage.Declaration((1,), opstage.init.ones)}
    return opstage.Model("m", config, parameters, loss, None, (opstage.Spec("B 2"), opstage.Spec("B")), outputs=outputs)
"""
ONES = np.ones((1, 2))
DATA = from_arrays(x=np.ones((40, 2)), y=np.ones(40))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    for name in ("model", "helper"):
        sys.modules.pop(name, None)


def written(folder: Path, factor: float, model: str = MODEL) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(model)
    (folder / "helper.py").write_text(f"FACTOR = {factor}\n")
    return folder / "model.py"


def fitted(model: Any, **more: Any) -> Any:
    return opstage.fit(model, DATA, epochs=1, batch_size=8, progress=False, **more)


def factor(trained: Any) -> float:
    return float(trained.predict(ONES)[0]) / 2


def test_helpers_of_one_name_are_each_their_models_own(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 100.0), ("c", 7.0)):
        path = written(tmp_path / name, value)
        assert factor(fitted(path, out=tmp_path / f"run-{name}")) == value
        assert factor(opstage.load(tmp_path / "run-a")) == 1.0
    for name, value in (("b", 100.0), ("c", 7.0), ("a", 1.0)):
        assert factor(opstage.load(tmp_path / f"run-{name}")) == value
    assert factor(fitted(tmp_path / "b/model.py")) == 100.0


def test_a_run_keeps_helpers_that_give_numbers_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 3.0)
    fitted(path, out=tmp_path / "run")
    assert (tmp_path / "run/source/helper.py").read_text() == "FACTOR = 3.0\n"
    written(tmp_path / "a", 5.0)
    assert factor(opstage.load(tmp_path / "run")) == 3.0
    assert factor(fitted(path)) == 5.0
    with pytest.raises(UsageError, match=r"helper\.py has changed since the run"):
        fitted(path, out=tmp_path / "run", resume=True)


def test_a_run_made_anew_in_one_place_is_the_new_one(tmp_path: Path) -> None:
    root = str(Path(opstage.__file__).parents[1])
    for value in (2.0, 4.0):
        path = written(tmp_path / "a", value)
        text = f"""import shutil, numpy as np, opstage
shutil.rmtree("run", True)
rows = opstage.data.from_arrays(x=np.ones((40, 2)), y=np.ones(40))
opstage.fit({str(path)!r}, rows, epochs=1, batch_size=8, progress=False, out="run")"""
        subprocess.run([sys.executable, "-c", text], check=True, cwd=tmp_path, env={"PYTHONPATH": root})
        assert factor(opstage.load(tmp_path / "run")) == value


def test_a_module_that_has_changed_since_it_was_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # changed literals show in what Python has cached
    written(tmp_path, 1.0)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    try:
        module: Any = importlib.import_module("model")
        made = module.make(module.Config())
        assert factor(fitted(made, out=tmp_path / "run")) == 1.0 == factor(opstage.load(tmp_path / "run"))
        for name, text in (("helper.py", "FACTOR = 9.0\n"), ("model.py", MODEL.replace("c=FACTOR", "c=FACTOR * 2"))):
            before = (tmp_path / name).read_text()
            (tmp_path / name).write_text(text)
            with pytest.raises(UsageError, match=f"{name} has changed since it was imported"):
                fitted(made)
            (tmp_path / name).write_text(before)
        assert factor(fitted(made)) == 1.0
    finally:
        for name in ("model", "helper"):
            sys.modules.pop(name, None)


def test_imports_within_functions_are_refused_where_a_run_is_kept(tmp_path: Path) -> None:
    late = MODEL.replace("from helper import FACTOR", "").replace(
        "    return ops.scale", "    from helper import FACTOR\n    return ops.scale"
    )
    path = written(tmp_path / "a", 1.0, late)
    assert factor(fitted(path)) == 1.0
    with pytest.raises(UsageError, match=r"model\.py:11: imports a file next to it when a function is called"):
        fitted(path, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    sys.modules.pop("helper", None)


def test_another_model_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    fitted(written(tmp_path / "a", 1.0), out=tmp_path / "run")
    with pytest.raises(UsageError, match="holds a run of"):
        fitted(written(tmp_path / "b", 1.0), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"optimizer": opstage.optim.sgd}, "optimizer= is Sgd itself; expected an Optimizer"),
        ({"optimizer": 3}, "optimizer= is an int"),
        ({"held_out": "0.5"}, "held_out= is a str"),
        ({"held_out": 1}, "held_out must lie between 0 and 1"),
        ({"callbacks": 3}, "callbacks= is an int"),
        ({"settings": {"dta": {}}}, "settings= has 'dta', which is not a table .did you mean 'data'"),
        ({"settings": {"data": {"scale": "standard"}}}, "data.scale is for a data file"),
        ({"settings": {"data": {"batch_size": 3}}}, "batch_size is given twice"),
        ({"out": 3}, "out= is an int; expected a path"),
        ({"options": 3}, "options= is an int"),
    ],
)
def test_arguments_of_another_kind_are_heard(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(written(tmp_path / "a", 1.0), **more)


def test_held_out_data_are_those_given(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1.0)
    other = {"x": np.zeros((5, 2)), "y": np.full(5, 3.0)}
    for given in (other, (other["x"], other["y"]), from_arrays(**other)):
        trained = fitted(path, held_out=given)
        assert len(trained.prepared_rows()) == 5
        assert trained.results[-1].held_out == trained.evaluate(other)
    pair = opstage.fit(path, ((DATA["x"], DATA["y"]), (other["x"], other["y"])), epochs=1, batch_size=8, progress=False)
    assert len(pair.prepared_rows()) == 5
