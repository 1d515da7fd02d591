"""Arrays of files and datasets go to the arguments of their names, in whatever order a file has them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, ScalarModuleDef, Spec, check_step, optim
from opstage.data import Dataset, Loader, Prefetch, from_arrays, from_csv, from_file, from_npy, from_npz
from opstage.ops.errors import ShapeError, UsageError
from opstage.training.fit import evaluate, fit
from opstage.training.trainer import ScalarTrainer, scalar_trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = X @ np.array([1.0, -2.0])
W = RNG.uniform(0.5, 1.0, size=12)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    e = ops.sub(ops.reshape(ops.matmul(x, params), shape=y.shape), y)
    return ops.sum(ops.mul(e, e))


def with_state(ops: Any, params: Any, state: Any, x: Any, y: Any, train: bool = False) -> Any:
    return loss(ops, params, x, y), Aux(state=state)


def weighted(ops: Any, params: Any, x: Any, y: Any, w: Any = None) -> Any:
    e = ops.sub(ops.reshape(ops.matmul(x, params), shape=y.shape), y)
    e = ops.mul(e, e)
    return ops.sum(e if w is None else ops.mul(e, w))


def metrics(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return {"loss": loss(ops, params, x, y)}


def with_state_metrics(ops: Any, params: Any, state: Any, y: Any, x: Any) -> Any:
    return metrics(ops, params, x, y)


def trained(batches: Any, program: Any = loss, held_out: Any = None) -> tuple[Any, list[Any]]:
    carried = program is with_state
    state = {"seen": np.zeros(())} if carried else None
    options = Options(dtype="float64", validate=False)
    t: ScalarTrainer = scalar_trainer(program, np.zeros((2, 1)), options=options, state=state)
    measured = with_state_metrics if carried else metrics
    results = fit(t, optim.sgd(lr=0.01), batches, batches if held_out is None else held_out, measured, epochs=2)
    return t.get_params(), [r.held_out["loss"] for r in results]


def same(a: tuple[Any, list[Any]], b: tuple[Any, list[Any]]) -> None:
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_allclose(a[1], b[1], rtol=1e-12)


PLAIN = trained(Loader(from_arrays(x=X, y=Y), 4, seed=1))


def files(folder: Path) -> dict[str, Callable[[], Dataset]]:
    np.savez(folder / "xy.npz", x=X, y=Y)
    np.savez(folder / "yx.npz", y=Y, x=X)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return {
        "npz, x first": lambda: from_npz(folder / "xy.npz"),
        "npz, y first": lambda: from_npz(folder / "yx.npz"),
        "npz, keys": lambda: from_npz(folder / "yx.npz", ("y", "x")),
        "npz, only": lambda: from_npz(folder / "yx.npz").only("x", "y"),
        "any file": lambda: from_file(folder / "yx.npz"),
        "npy": lambda: from_npy(y=folder / "y.npy", x=folder / "x.npy"),
        "arrays": lambda: from_arrays(y=Y, x=X),
        "dictionary": lambda: from_arrays(**dict(sorted({"x": X, "y": Y}.items(), reverse=True))),
    }


@pytest.mark.parametrize("ahead", [0, 2], ids=["loader", "prefetch"])
@pytest.mark.parametrize("program", [loss, with_state], ids=["loss", "with state"])
def test_a_training_loop_binds_names(program: Any, ahead: int, tmp_path: Path) -> None:
    for dataset in files(tmp_path).values():
        batches: Any = Loader(dataset(), 4, seed=1)
        same(trained(Prefetch(batches, ahead) if ahead else batches, program), PLAIN)


def test_metrics_of_another_order_get_their_own() -> None:
    def turned(ops: Any, params: Any, y: Any, x: Any) -> Any:
        return {"loss": loss(ops, params, x, y)}

    t = scalar_trainer(loss, np.ones((2, 1)), options=Options(dtype="float64", validate=False))
    batches = Loader(from_arrays(x=X, y=Y), 5, shuffle=False)
    assert evaluate(t, turned, batches) == evaluate(t, metrics, batches)


def test_optional_arguments_take_part() -> None:
    two = trained(Loader(from_arrays(y=Y, x=X), 4, seed=1), weighted)
    same(two, PLAIN)
    held_out = Loader(from_arrays(x=X, y=Y), 4)
    results = [
        trained(Loader(from_arrays(**{n: {"x": X, "y": Y, "w": W}[n] for n in order}), 4, seed=1), weighted, held_out)
        for order in itertools.permutations("xyw")
    ]
    for result in results:
        same(result, results[0])
    assert not np.array_equal(results[0][0], two[0])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_file_whose_order_nobody_asked_for_gives_no_batches_by_position(ahead: bool, tmp_path: Path) -> None:
    files(tmp_path)
    for name in ("xy", "yx"):
        dataset = from_npz(tmp_path / f"{name}.npz")
        assert set(dataset.names) == {"x", "y"}
        np.testing.assert_array_equal(dataset["x"], X)
        loader = Loader(dataset.take(np.arange(8)), 4)
        with pytest.raises(UsageError, match=r"have no defined order.*dataset\.only\('x', 'y'\), or keys="):
            next((Prefetch(loader) if ahead else loader).epoch(0))
        for x, y in Loader(dataset.only("x", "y"), 4).epoch(0):
            assert x.shape == (4, 2) and y.shape == (4,)
    np.savez(tmp_path / "one.npz", x=X)
    assert len(next(Loader(from_npz(tmp_path / "one.npz"), 4).epoch(0))) == 1


REFUSED: dict[str, tuple[Callable[[Path], Dataset], Any, str]] = {
    "other names, no order": (
        lambda f: from_npz(f / "ab.npz"),
        loss,
        r"arrays b, a, and the loss takes .* x, y; name them",
    ),
    "one of two": (lambda f: from_arrays(y=Y, z=X), loss, "y would go to another argument than that of its name"),
    "another place": (lambda f: from_arrays(a=Y, x=Y), loss, "x would go to another argument than that of its name"),
    "too many": (
        lambda f: from_arrays(x=X, y=Y, w=W),
        loss,
        r"takes the batch arguments x, y; name them: from_arrays\(x=",
    ),
    "too few": (lambda f: from_arrays(x=X), loss, "the loss takes the batch arguments x, y"),
    "no names, no order": (
        lambda f: from_npz(f / "xy.npz"),
        lambda ops, params, *batch: loss(ops, params, *batch),
        "does not name its batch arguments",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_bound_is_an_error(case: str, tmp_path: Path) -> None:
    files(tmp_path)
    np.savez(tmp_path / "ab.npz", b=Y, a=X)
    dataset, program, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        trained(Loader(dataset(tmp_path), 4), program, Loader(from_arrays(x=X, y=Y), 4))


def test_an_order_that_was_asked_for_is_taken() -> None:
    """Of names that the program does not know, and of batches that are nobody's dataset."""
    held_out = Loader(from_arrays(x=X, y=Y), 4)
    same(trained(Loader(from_arrays(images=X, labels=Y), 4, seed=1), loss, held_out), PLAIN)
    same(
        trained(Loader(from_arrays(x=X, y=Y), 4, seed=1), lambda ops, p, *batch: loss(ops, p, *batch), held_out), PLAIN
    )

    class Own:
        def __init__(self) -> None:
            self.inner = Loader(from_arrays(y=Y, x=X), 4, seed=1)

        def __len__(self) -> int:
            return len(self.inner)

        def epoch(self, epoch: int, start: int = 0) -> Any:
            return ((x, y) for y, x in self.inner.epoch(epoch, start))

    same(trained(Own(), loss, held_out), PLAIN)


TABLES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "last": ("a,b,out", {}, "out"),
    "y": ("a,y,b", {}, "y"),
    "y first": ("y,a,b", {}, "y"),
    "label last": ("class,a,label", {}, "label"),
    "named": ("label,a,b", {"label": "label"}, "label"),
    "the last, asked for": ("label,a,b", {"label": -1}, "b"),
    "label first": ("label,a,b", {}, None),
    "Target": ("a,Target,b", {}, None),
}


@pytest.mark.parametrize("case", TABLES)
def test_the_label_of_a_table(case: str, tmp_path: Path) -> None:
    header, how, label = TABLES[case]
    names = header.split(",")
    (tmp_path / "t.csv").write_text(f"{header}\n1,2,3\n4,5,6\n")
    if label is None:
        with pytest.raises(UsageError, match=r"t\.csv: the label is ambiguous: the last column is b, .*label="):
            from_csv(tmp_path / "t.csv", **how)
        return
    dataset = from_csv(tmp_path / "t.csv", **how)
    assert dataset["y"].tolist() == [1 + names.index(label), 4 + names.index(label)]
    assert dataset.names == ("x", "y")


# One dict or dataset as the batch ------------------------------------------------------------------------------------

ONE: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"x": X, "y": Y},
    "dict, y first": lambda: {"y": Y, "x": X},
    "ordered dict": lambda: OrderedDict(y=Y, x=X),
    "mapping": lambda: MappingProxyType({"y": Y, "x": X}),
    "lists": lambda: {"y": Y.tolist(), "x": X.tolist()},
    "dataset": lambda: from_arrays(x=X, y=Y),
    "dataset, y first": lambda: from_arrays(y=Y, x=X),
    "other names in order": lambda: from_arrays(images=X, labels=Y),
}


def made(program: Any, *specs: Any, backend: str = "eager", validate: bool = True) -> ScalarTrainer:
    state = {"seen": np.zeros(())} if program is with_state else None
    options = Options(dtype="float64", backend=backend, validate=validate)
    return scalar_trainer(program, np.full((2, 1), 0.5), *specs, options=options, state=state)


CALLS: dict[str, Callable[..., Any]] = {
    "step": lambda t, *batch: t.step(0.01, *batch),
    "adam_step": lambda t, *batch: t.adam_step(0.1, 0.9, 0.999, 1e-8, *batch),
    "adamw_step": lambda t, *batch: t.adamw_step(0.1, 0.9, 0.999, 1e-8, 0.01, *batch),
    "step_with": lambda t, *batch: t.step_with(optim.sgd(lr=0.1), t.init_optim(optim.sgd(lr=0.1)), *batch).t,
    "train_step": lambda t, *batch: t.train_step(optim.sgd(lr=0.1), t.init_optim(optim.sgd(lr=0.1)), *batch).loss,
    "advance": lambda t, *batch: t.advance(optim.sgd(lr=0.1), t.init_optim(optim.sgd(lr=0.1)), *batch).loss,
    "forward": lambda t, *batch: t.forward(*batch),
    "backward": lambda t, *batch: t.backward(*batch),
    "loss_and_backward": lambda t, *batch: t.loss_and_backward(*batch)[1],
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("program", [loss, with_state], ids=["loss", "with state"])
def test_one_batch_of_names_is_bound(program: Any, call: str) -> None:
    expected = made(program)
    value = CALLS[call](expected, X, Y)
    for given in ONE.values():
        trainer = made(program)
        np.testing.assert_array_equal(CALLS[call](trainer, given()), value)
        np.testing.assert_array_equal(trainer.get_params(), expected.get_params())


@pytest.mark.parametrize("given", ONE)
@pytest.mark.parametrize("program", [metrics, with_state_metrics], ids=["metrics", "with state, y first"])
def test_names_are_those_of_the_program_that_is_evaluated(program: Any, given: str) -> None:
    carried = program is with_state_metrics
    trainer = made(with_state if carried else loss)
    expected = trainer.evaluate(program, *((Y, X) if carried else (X, Y)))
    if given == "other names in order":
        return  # the order of the one is not that of the other
    assert trainer.evaluate(program, ONE[given]()) == expected


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_specs_by_name_and_batches_by_name_or_position(backend: str) -> None:
    shapes = {"y": Spec("B"), "x": Spec("B 2")}
    trainer = made(loss, shapes, backend=backend)
    first = trainer.forward(X, Y)
    assert trainer.forward({"y": Y, "x": X}) == first == trainer.forward(from_arrays(y=Y, x=X))
    with pytest.raises(ShapeError, match=r"x is \(12, 3\)"):
        trainer.forward({"y": Y, "x": np.ones((12, 3))})
    assert trainer.report({"y": Spec("B"), "x": Spec("B 2")}).ok
    assert check_step(loss, Spec("2 1"), shapes).ok
    assert check_step(loss, Spec("2 1"), from_arrays(y=Y, x=X)).ok
    assert check_step(with_state, Spec("2 1"), shapes, state={"seen": Spec("")}).ok
    (wrong,) = check_step(loss, Spec("2 1"), {"y": Spec("B"), "z": Spec("B 2")}).errors
    assert "takes the batch arguments x, y" in wrong.reason


def test_a_module_takes_samples_by_name() -> None:
    module = ScalarModuleDef(np.full((2, 1), 0.5), loss).instantiate(Options(dtype="float64"))
    other = ScalarModuleDef(np.full((2, 1), 0.5), loss).instantiate(Options(dtype="float64"))
    module.train_sgd(0.01, 3, [{"y": Y, "x": X}], log_every=0)
    other.train_sgd(0.01, 3, [(X, Y)], log_every=0)
    np.testing.assert_array_equal(module.params(), other.params())
    assert module.mean_loss([{"y": Y, "x": X}]) == other.mean_loss([(X, Y)])


def of_a_dict(ops: Any, params: Any, batch: Any) -> Any:
    return loss(ops, params, batch["x"], batch["y"])


def of_x(ops: Any, params: Any, x: Any, train: bool = False) -> Any:
    return loss(ops, params, x["x"], x["y"])


def of_a_dict_and_a_weight(ops: Any, params: Any, batch: Any, w: Any = None) -> Any:
    return loss(ops, params, batch["x"], batch["y"])


def of_any(ops: Any, params: Any, *batch: Any) -> Any:
    return loss(ops, params, batch[0]["x"], batch[0]["y"])


@pytest.mark.parametrize("program", [of_a_dict, of_x, of_a_dict_and_a_weight, of_any])
@pytest.mark.parametrize("specs", [(), ({"x": Spec("B 2"), "y": Spec("B")},)], ids=["no specs", "specs"])
def test_a_loss_of_one_argument_gets_the_dict(program: Any, specs: Any) -> None:
    trainer, expected = made(program, *specs), made(loss)
    assert trainer.forward({"y": Y, "x": X}) == expected.forward(X, Y)
    assert trainer.step(0.1, {"y": Y, "x": X}) == expected.step(0.1, X, Y)
    assert check_step(program, Spec("2 1"), {"x": Spec("B 2"), "y": Spec("B")}).ok


def of_one_with_its_own_name(ops: Any, params: Any, x: Any, w: Any = None) -> Any:
    return ops.sum(ops.matmul(x["x"], params))


def test_a_dict_whose_only_key_is_the_argument_is_a_tree() -> None:
    assert made(of_one_with_its_own_name).forward({"x": X}) == np.sum(X @ np.full((2, 1), 0.5))


def test_optional_arguments_are_bound_in_a_dict_too() -> None:
    def of_one_or_two(ops: Any, params: Any, x: Any, y: Any = None) -> Any:
        return loss(ops, params, x, y)

    assert made(of_one_or_two).forward({"y": Y, "x": X}) == made(loss).forward(X, Y)
    assert made(weighted).forward({"w": W, "y": Y, "x": X}) == made(weighted).forward(X, Y, W)
    assert made(weighted).forward({"y": Y, "x": X}) == made(weighted).forward(X, Y)


UNBOUND: dict[str, tuple[Any, Any, str]] = {
    "another name": (loss, {"x": X, "z": Y}, r"a dict of x, z, and the loss takes the batch arguments x, y: y is miss"),
    "a near name": (loss, {"x": X, "yy": Y}, r"y is missing \(did you mean 'yy'\?\); yy is none of them"),
    "too few": (loss, {"x": X}, r"a dict of x, and the loss takes the batch arguments x, y: y is missing"),
    "none": (loss, {}, r"a dict of nothing, .* x is missing"),
    "too many": (loss, {"x": X, "y": Y, "z": W}, r"a dict of x, y, z, .* x, y: z is none of them\. Give \{'x': …, 'y'"),
    "numbers": (loss, {0: X, 1: Y}, r"a dict of 0, 1, .* x is missing; 0 is none of them"),
    "with state": (with_state, {"state": X, "y": Y}, r"takes the batch arguments x, y: x is missing; state is none"),
    "optional": (
        weighted,
        {"x": X, "y": Y, "v": W},
        r"x, y \(and may take w, in that order\): w is missing; v is none",
    ),
    "dataset, too few": (
        loss,
        from_arrays(x=X),
        r"the dataset has the arrays x, and the loss takes .* x, y; name them",
    ),
    "dataset, one of two": (loss, from_arrays(y=Y, z=X), r"y would go to another argument than that of its name"),
    "dataset of one": (
        of_a_dict,
        from_arrays(x=X, y=Y),
        r"the dataset has the arrays x, y, .* arguments batch; name them",
    ),
}


@pytest.mark.parametrize("case", UNBOUND)
@pytest.mark.parametrize("call", ["step", "forward", "backward", "advance"])
def test_names_that_are_no_arguments_are_an_error_with_both_sides(case: str, call: str) -> None:
    program, given, message = UNBOUND[case]
    trainer = made(program)
    with pytest.raises(UsageError, match=message):
        CALLS[call](trainer, given)
    assert trainer.steps_taken == 0
    with pytest.raises(UsageError, match=message.replace("the loss", "the program")):
        trainer.evaluate(program, given)


def test_a_dataset_is_a_whole_batch() -> None:
    with pytest.raises(UsageError, match="a Dataset is a whole batch"):
        made(loss).forward(from_arrays(x=X), Y)


def test_a_file_whose_order_nobody_asked_for_is_bound_by_name_alone(tmp_path: Path) -> None:
    files(tmp_path)
    for name in ("xy", "yx"):
        assert made(loss).forward(from_npz(tmp_path / f"{name}.npz")) == made(loss).forward(X, Y)
        with np.load(tmp_path / f"{name}.npz") as read:
            assert made(loss).forward(read) == made(loss).forward(X, Y)
    np.savez(tmp_path / "ab.npz", b=Y, a=X)
    with pytest.raises(UsageError, match="the dataset has the arrays b, a, and the loss takes"):
        made(loss).forward(from_npz(tmp_path / "ab.npz"))


QUESTIONS: dict[str, Callable[..., Any]] = {
    "run": opstage.run,
    "value_and_grad": opstage.value_and_grad,
    "vjp": opstage.vjp,
    "jvp": lambda program, *args: opstage.jvp(program, args, args),
    "hvp": lambda program, *args: opstage.hvp(program, args, args),
    "record": opstage.record,
    "compile": opstage.compile,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_program_that_is_asked_directly_takes_its_arguments_one_by_one(question: str) -> None:
    message = r"takes the arguments params, x, y, but got 2: the last one, for x, is a dict of y, x\. Pass each"
    with pytest.raises(UsageError, match=message):
        QUESTIONS[question](loss, np.ones((2, 1)), {"y": Y, "x": X})
    tree = {"y": Y, "x": X}
    assert opstage.run(of_a_dict, np.ones((2, 1)), tree) == opstage.run(loss, np.ones((2, 1)), X, Y)


def test_a_check_says_so_too() -> None:
    (finding,) = opstage.check(loss, Spec("2 1"), {"x": Spec("B 2"), "y": Spec("B")}).errors
    assert "takes the arguments params, x, y, but got 2" in finding.reason
    assert opstage.check(of_a_dict, Spec("2 1"), {"x": Spec("B 2"), "y": Spec("B")}).ok


def test_what_is_no_tensor_is_named_by_the_argument_of_the_program_that_takes_it() -> None:
    for program in (loss, with_state):
        with pytest.raises(UsageError, match=r"argument x: a tensor must hold numbers"):
            made(program, validate=False).forward("text", Y)
    with pytest.raises(UsageError, match=r"argument y: a tensor must hold numbers"):
        made(with_state, validate=False).evaluate(with_state_metrics, "text", X)
