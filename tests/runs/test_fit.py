"""`opstage.fit`: what the command does, from Python, with data at hand and models of every form."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Declaration, Model, NotFiniteError, Options, Spec, UsageError, callbacks, derived, init, optim
from opstage.data import digits, from_arrays, train_test_split
from opstage.models import mlp, model
from opstage.runs import configure, train

SMALL = mlp.Config(hidden=(16,))
X = np.random.default_rng(0).normal(size=(96, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.25


def line(name: str = "line") -> Model:
    def predict(ops: Any, params: Any, x: Any) -> Any:
        return ops.squeeze(ops.linear(params["w"], params["b"], x), axis=1)

    def loss(ops: Any, params: Any, x: Any, target: Any) -> Any:
        return ops.mse_loss(predict(ops, params, x), target)

    parameters = {"w": Declaration((1, 3), init.zeros), "b": Declaration((1,), init.zeros)}
    return Model(name, None, parameters, loss, None, (Spec("B 3"), Spec("B")), outputs=predict)


def same(a: Any, b: Any) -> bool:
    pairs = zip(a.trainer.export().params.items(), b.trainer.export().params.items(), strict=True)
    return all(n == m and np.array_equal(v, w) for (n, v), (m, w) in pairs)


def quiet(*args: Any, **more: Any) -> Any:
    return opstage.fit(*args, progress=False, **more)


def test_it_trains_as_the_command_does_bit_for_bit(tmp_path: Path) -> None:
    values = {"run": {"epochs": 2, "out": tmp_path / "run"}, "model": {"hidden": (16,)}}
    outcome = train(configure("mlp", values=values, environ={}))
    forms: list[Any] = [
        quiet("mlp", config=SMALL, epochs=2),
        quiet(mlp, config=SMALL, epochs=2),
        quiet(model("mlp", SMALL), epochs=2),
        quiet("mlp", train_test_split(digits(), seed=0), config=SMALL, epochs=2),
        quiet("mlp", digits(), config=SMALL, epochs=2),
    ]
    for fitted in forms:
        assert [r.held_out for r in fitted.results] == [r.held_out for r in outcome.results]
        assert same(fitted, opstage.load(tmp_path / "run"))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_arrays_go_to_the_arguments_of_their_names(backend: str) -> None:
    options = Options(backend=backend, seed=3)
    keep = {
        "epochs": 100,
        "lr": 0.05,
        "batch_size": 16,
        "options": options,
        "settings": {"optimizer": {"weight_decay": 0.0}},
    }
    named = quiet(line(), {"target": Y, "x": X}, **keep)
    in_order = quiet(line(), (X, Y), **keep)
    dataset = quiet(line(), from_arrays(x=X, target=Y), **keep)
    assert same(named, in_order) and same(named, dataset)
    assert np.allclose(named.predict(X[:5]), Y[:5], atol=0.02)
    assert named.results[-1].held_out["loss"] < 1e-3
    assert named.evaluate()["loss"] == named.results[-1].held_out["loss"]


def test_a_run_in_python_is_kept_resumed_and_loaded(tmp_path: Path) -> None:
    keep = {"epochs": 4, "batch_size": 16, "optimizer": "adam", "lr": 0.05}
    whole = quiet(line(), (X, Y), out=tmp_path / "whole", **keep)

    again = quiet(line(), (X, Y), out=tmp_path / "whole", resume=True)
    assert same(whole, again) and len(again.results) == 4
    loaded = opstage.load(tmp_path / "whole", model=line())
    assert np.array_equal(loaded.predict(X), whole.predict(X))
    with pytest.raises(UsageError, match="line is a model made in Python"):
        opstage.load(tmp_path / "whole")
    with pytest.raises(UsageError, match="holds a run of python:line, but the model given is python:other"):
        opstage.load(tmp_path / "whole", model=line("other"))
    with pytest.raises(UsageError, match="training data have changed"):
        quiet(line(), (X, Y + 1), out=tmp_path / "whole", resume=True)


def test_a_trainer_is_trained_where_it_stands() -> None:
    made = line()
    trainer = opstage.scalar_trainer(made.loss, init.build(made.init), Spec("B 3"), Spec("B"), options=Options(seed=1))
    fitted = quiet(trainer, (X, Y), epochs=100, batch_size=16, lr=0.05, outputs=made.outputs)
    assert fitted.trainer is trainer and np.allclose(fitted.predict(X[:5]), Y[:5], atol=0.05)
    bare = opstage.scalar_trainer(made.loss, init.build(made.init), options=Options(seed=1))
    assert same(quiet(bare, (X, Y), epochs=100, batch_size=16, lr=0.05), fitted)


def test_an_optimizer_is_taken_as_it_is() -> None:
    by_hand = opstage.scalar_trainer(line().loss, init.build(line().init))
    fitted = quiet(line(), (from_arrays(x=X, target=Y),) * 2, epochs=1, batch_size=96, optimizer=optim.sgd(lr=0.1))
    by_hand.step(0.1, X, Y)
    assert np.allclose(fitted.trainer.get_params()["w"], by_hand.get_params()["w"], rtol=1e-6)


def test_an_optimizer_is_the_same_when_a_run_goes_on(tmp_path: Path) -> None:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 16, "out": tmp_path / "run"}
    schedule = optim.schedule.cosine(0.1, total_steps=100)
    quiet(line(), (X, Y), optimizer=optim.adam(schedule), **given)
    for other in (None, optim.adam(lr=0.1), optim.adam(optim.schedule.cosine(0.1, total_steps=99))):
        with pytest.raises(UsageError, match=r"its optimizer was Adam\(lr=Cosine"):
            quiet(line(), (X, Y), optimizer=other, resume=True, **given)
    quiet(line(), (X, Y), optimizer=optim.adam(schedule), resume=True, **given)


def test_callbacks_follow_it() -> None:
    seen: list[int] = []
    each = opstage.callbacks.EachEpoch(lambda loop, result: seen.append(result.epoch))
    stopping = opstage.callbacks.EarlyStopping(patience=1, metric="loss", min_delta=1e9)
    fitted = quiet(line(), (X, Y), epochs=9, batch_size=16, callbacks=[each, stopping])
    assert seen == list(range(len(fitted.results))) and 1 < len(seen) < 9


def test_a_model_file_and_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opstage.cli.train import TEMPLATE

    text = (Path(opstage.__file__).parent / "cli" / TEMPLATE).read_text()
    (tmp_path / "mine.py").write_text(text)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mine", module)
    spec.loader.exec_module(module)
    config = module.Config(hidden=8)
    fitted = [
        quiet(tmp_path / "mine.py", epochs=1, settings={"model": {"hidden": 8}}),
        quiet(module, config=config, epochs=1),
        quiet(module.make(config), train_test_split(digits_as_rows()), epochs=1, lr=2e-3, out=tmp_path / "run"),
    ]
    assert same(fitted[0], fitted[1]) and same(fitted[1], fitted[2])
    assert (tmp_path / "run/source/mine.py").read_text() == text
    rows = digits_as_rows()["x"][:9]
    expected = fitted[2].predict(rows)["probabilities"]
    assert np.array_equal(opstage.load(tmp_path / "run").predict(rows)["probabilities"], expected)


def digits_as_rows() -> Any:
    images = digits()
    return from_arrays(x=images["x"].reshape(len(images), -1), y=images["y"])


@pytest.mark.parametrize(
    ("model_", "data", "more", "message"),
    [
        (3, None, {}, "an int cannot be trained"),
        ("mpl", None, {}, "unknown model 'mpl' .did you mean 'mlp'"),
        (line(), None, {}, "lacks default data"),
        (line(), (X,), {}, "data is 1 arrays, but the loss of line takes x, target"),
        (line(), (X, Y[:-1]), {}, "has 95 rows but x has 96"),
        (line(), {"x": X, "y": Y}, {}, "has the arrays x, y, and the loss takes the batch arguments x, target"),
        (line(), (X, Y), {"config": SMALL}, "has its config already"),
        (line(), (X, Y), {"resume": True}, "name it with out="),
        (line(), (X, Y), {"optimizer": optim.sgd(), "lr": 0.1}, "an Optimizer has its own"),
        (line(), (X, Y), {"settings": {"run": {"epoch": 3}}}, "has no key 'epoch'"),
        (line(), (X, Y), {"metrics": line().loss}, "go with a ScalarTrainer"),
        (line(), (X[:, :2], Y), {"batch_size": 8}, "x is .8, 2."),
        ("mlp", None, {"config": line()}, "is configured by Config"),
        (line(), (from_arrays(x=X, target=Y),) * 2, {"held_out": 0.5}, "is .training, held out. already"),
        (line(), "rows.csv", {"held_out": from_arrays(x=X, target=Y)}, "must be arrays too"),
    ],
)
def test_arguments_that_cannot_be_used(
    model_: Any, data: Any, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(opstage.OpstageError, match=message):
        quiet(model_, data, **{"out": None if "resume" in more else tmp_path / "run", **more})


def test_numbers_that_are_not_finite_stop_it() -> None:
    with pytest.raises(NotFiniteError):
        quiet(line(), (X, Y), epochs=9, batch_size=16, optimizer=optim.sgd(lr=1e6))


def test_a_model_that_is_not_its_files_is_one_made_in_python(tmp_path: Path) -> None:
    import dataclasses

    from opstage.runs.model_files import define_model

    assert define_model(model("mlp", SMALL)).word == "mlp"
    changed = dataclasses.replace(model("mlp", SMALL), outputs=lambda ops, params, x: {"n": derived.dropout})
    assert define_model(changed).word == "python:mlp"


def test_the_best_epoch_of_a_run_is_kept_in_it(tmp_path: Path) -> None:
    """Of each run in its own, though a callback that was given no folder goes from one to the next."""
    best, kept = callbacks.BestCheckpoint("accuracy"), {}
    for seed, name in enumerate(("one", "two")):
        config = mlp.Config(hidden=(4,))
        quiet("mlp", config=config, epochs=2, callbacks=best, out=tmp_path / name, options=Options(seed=seed))
        kept[name] = (tmp_path / name / "best" / "checkpoint.json").read_text()
        assert opstage.load(tmp_path / name, which="best").predict(np.zeros((1, 1, 8, 8)))["class"].shape == (1,)
    assert (tmp_path / "one" / "best" / "checkpoint.json").read_text() == kept["one"] != kept["two"]
    with pytest.raises(UsageError, match="argument folder: expected a folder"):
        quiet("mlp", config=SMALL, epochs=1, callbacks=best)
