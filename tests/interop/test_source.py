"""Models written as source: the values are those of the loaded model, bit for bit; the text is one that people read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
import opstage.onnx
from opstage import Options
from opstage.files import Disk
from opstage.onnx.source import write_source
from opstage.ops.errors import OpstageError, UnsupportedError, UsageError
from tests.interop.onnx.models import classifier, load, model, node
from tests.interop.onnx.programs import FILES, PROGRAMS, WHERE

RNG = np.random.default_rng(0)


def module_of(path: Path) -> Any:
    """The written module, imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def trees_of(module: Any) -> tuple[Any, ...]:
    """The parameters of a written module, and its state if it has one."""
    return (module.PARAMS, module.STATE) if hasattr(module, "STATE") else (module.PARAMS,)


WRITTEN: list[str] = []
"""The texts of modules that were written here."""


@pytest.fixture(autouse=True, scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of all that is written, nothing that ruff's default rules say, where ruff is."""
    yield
    folder = tmp_path_factory.mktemp("linted")
    for i, text in enumerate(WRITTEN):
        (folder / f"written_{i}.py").write_text(text)
    if WRITTEN and importlib.util.find_spec("ruff") is not None:
        command = [sys.executable, "-m", "ruff", "check", "--isolated", str(folder)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
    WRITTEN.clear()


def run(program: Any, trees: tuple[Any, ...], inputs: Any, **options: Any) -> list[Any]:
    train = options.pop("train", False)
    result = opstage.run(program, *trees, *inputs, options=Options(**options), train=train)
    outputs, state = result if len(trees) == 2 else (result, {})
    return [*outputs.values(), *state.values()]


def written(proto: Any, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """The loaded model and the module written from it."""
    loaded = load(proto, where=settings.pop("where", ()))
    path = folder / "written_model.py"
    write_source(loaded, path, force=True, **settings)
    WRITTEN.append(path.read_text())
    return loaded, module_of(path)


def same(proto: Any, folder: Path, *inputs: Any, train: bool = False, where: tuple[str, ...] = ()) -> Any:
    """Assert that both compute the same bits; the module."""
    loaded, module = written(proto, folder, where=where)
    theirs, ours = trees_of(module), loaded.trees
    for options in ({}, {"dtype": "float64"}, {"backend": "compiled"}):
        expected, found = run(loaded, ours, inputs, **options), run(module.program, theirs, inputs, **options)
        if train:
            expected += run(loaded, ours, inputs, train=True, **options)
            found += run(module.program, theirs, inputs, train=True, **options)
        assert len(expected) == len(found) > 0
        for a, b in zip(expected, found):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return module


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    proto, inputs = FILES[name]()
    same(proto, tmp_path, *inputs, train=name == "resnet", where=WHERE.get(name, ()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_programs(name: str, tmp_path: Path) -> None:
    exported = PROGRAMS[name]()
    same(exported.proto(), tmp_path, *exported.inputs)


def test_training_is_written_beside_evaluation(tmp_path: Path) -> None:
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    module = same(classifier(), tmp_path, x, train=True)
    text = Path(module.__file__).read_text()
    assert "    if train:\n" in text and "ops.batch_norm_eval(" in text and "ops.bernoulli_mask(" in text
    assert text.count("ops.linear(") == 2
    made = module.make(module.Config(loss="cross_entropy"))
    trainer = opstage.scalar_trainer(made.loss, made.init, *made.batch, state=made.state)
    optimizer = opstage.optim.adam(lr=0.05)
    state = trainer.init_optim(optimizer)
    x = RNG.standard_normal((64, 4))
    losses = [float(trainer.advance(optimizer, state, x, (x[:, 0] > 0).astype(int)).loss) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def encoder(names: Callable[[int], str], layers: int = 3) -> Any:
    """Layers of a residual MLP, whose parameters are called by `names`."""
    weights, nodes, x = {}, [], "x"
    for i in range(layers):
        module = names(i)
        weights[f"{module}.up.weight"] = RNG.standard_normal((8, 4)).astype(np.float32)
        weights[f"{module}.up.bias"] = RNG.standard_normal(8).astype(np.float32)
        weights[f"onnx::MatMul_{i}"] = RNG.standard_normal((8, 4)).astype(np.float32)
        at = "/" + module.replace(".", "/", 1)
        nodes += [
            node("Gemm", [x, f"{module}.up.weight", f"{module}.up.bias"], [f"a{i}"], f"{at}/up/Gemm", transB=1),
            node("Tanh", [f"a{i}"], [f"b{i}"], f"{at}/act/Tanh"),
            node("MatMul", [f"b{i}", f"onnx::MatMul_{i}"], [f"c{i}"], f"{at}/down/MatMul"),
            node("Add", [x, f"c{i}"], [f"d{i}"], f"{at}/Add"),
        ]
        x = f"d{i}"
    return model(nodes, {"x": ["batch", 4]}, [x], weights)


def test_blocks_of_one_structure_are_a_loop_over_one_function(tmp_path: Path) -> None:
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    module = same(encoder(lambda i: f"encoder.layer.{i}"), tmp_path, x)
    text = Path(module.__file__).read_text()
    assert "for i in range(3):" in text and text.count("ops.tanh(") == 1
    assert 'below(params, f"{i}.")' in text and 'params["down.weight"]' in text and "onnx::" not in text
    assert sorted(module.PARAMS)[:3] == [f"encoder.layer.0.{each}" for each in ("down.weight", "up.bias", "up.weight")]


def test_constraints_that_sizes_lack_are_one_error(tmp_path: Path) -> None:
    pads = {"wide": np.array([64, 64]), "narrow": np.array([9, 9])}
    nodes = [
        node("Pad", ["x", "wide"], ["a"], mode="reflect"),
        node("Pad", ["a", "narrow"], ["b"], mode="reflect"),
        node("Pad", ["y", "narrow"], ["c"], mode="reflect"),
        node("Add", ["u", "v"], ["d"]),
    ]
    data = model(nodes, {"x": ["T"], "y": ["S"], "u": ["e"], "v": ["f"]}, ["b", "c", "d"], pads).SerializeToString()
    with pytest.raises(UnsupportedError) as caught:
        write_source(opstage.onnx.load(data), tmp_path / "padded.py")
    where = re.findall(r"--where '(.*?)'", str(caught.value))
    assert where == ["T >= 65", "S >= 10", "e == f"] and not list(tmp_path.iterdir())
    write_source(opstage.onnx.load(data, where=where), tmp_path / "padded.py")


def test_names_that_are_no_python(tmp_path: Path) -> None:
    """Keywords, quotes, braces, other letters, names of the source's own, and names that collide."""
    names = ['class.{x}."', "train.ops.'\\", "größe.\n.π"]
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    same(encoder(lambda i: names[i]), tmp_path, x)
    nodes = [
        node("Add", ["class", "ops.1"], ["a"], '/if/"""/Add'),
        node("Mul", ["a", "params"], ["b"], "/program/make/Mul"),
        node("Relu", ["b"], ["out put"], "/program/make/Relu"),
        node("Exp", ["ops_1"], ['out"put'], "/add/Exp"),
    ]
    inputs = {"class": ["n", 3], "ops.1": ["n", 3], "params": ["n", 3], "ops_1": ["x", "ops"]}
    proto = model(nodes, inputs, ["out put", 'out"put'])
    proto.graph.name = 'a"""\nimport os #'
    same(proto, tmp_path, *[RNG.standard_normal((2, 3)).astype(np.float32) for _ in range(4)])


def test_constants_stand_in_the_source_where_they_are_small(tmp_path: Path) -> None:
    mask = RNG.random((6, 6)) > 0.5
    weights = {
        "half": np.array(0.1, np.float32),
        "few": np.array([1.5, -np.inf], np.float32),
        "mask": mask,
        "wide": np.array(1 / 3),
    }
    nodes = [
        node("Mul", ["x", "half"], ["a"]),
        node("Reshape", ["few", "two"], ["f"]),
        node("Where", ["mask", "a", "half"], ["b"]),
        node("Max", ["y", "f"], ["c"]),
    ]
    weights["two"] = np.array([2, 1])
    proto = model(nodes, {"x": [6, 6], "y": [2, 4]}, ["b", "c"], weights)
    x, y = RNG.standard_normal((6, 6)).astype(np.float32), RNG.standard_normal((2, 4)).astype(np.float32)
    loaded = load(proto, constants=["few"])
    write_source(loaded, tmp_path / "written_model.py")
    module = module_of(tmp_path / "written_model.py")
    text = (tmp_path / "written_model.py").read_text()
    assert "x * ops.const(0.10000000149011612)" in text and "-math.inf" in text
    assert module.CONSTANT_1.shape == (6, 6) and module.PARAMS == {}
    for options in ({}, {"dtype": "float64"}):
        for a, b in zip(run(loaded, ({},), (x, y), **options), run(module.program, ({},), (x, y), **options)):
            assert a.tobytes() == b.tobytes()


def test_the_text_is_the_same_every_time(tmp_path: Path) -> None:
    texts = set()
    for i in range(2):
        path = tmp_path / f"m{i}.py"
        write_source(load(classifier()), path, origin="net.onnx")
        texts.add((path.read_text().replace(f"m{i}.", "m."), path.with_suffix(".safetensors").read_bytes()))
    assert len(texts) == 1


def test_nothing_is_written_over(tmp_path: Path) -> None:
    loaded = load(classifier())
    for name in ("net.py", "net.safetensors"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(UsageError, match=rf"{name} is there already.*--force"):
            write_source(loaded, tmp_path / "net.py")
        assert [each.name for each in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    for name in ("net.txt", "two words.py", "class.py", "1.py"):
        with pytest.raises(UsageError, match="expected the name of a Python module"):
            write_source(loaded, tmp_path / name)
    write_source(loaded, tmp_path / "net.py")
    write_source(loaded, tmp_path / "net.py", force=True)


@pytest.mark.parametrize("failing", [".py", ".safetensors"])
def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Where one of the files cannot be written, neither is there, or both are as they were."""
    loaded = load(classifier())
    write_source(loaded, tmp_path / "net.py")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    rename = Disk.rename

    def full(disk: Disk, source: Path, target: Path) -> None:
        if target.suffix == failing:
            raise OSError(28, "No space left on device")
        rename(disk, source, target)

    monkeypatch.setattr(Disk, "rename", full)
    changed = load(classifier(1))
    for name in ("net.py", "other.py"):
        with pytest.raises(OpstageError):
            write_source(changed, tmp_path / name, force=True)
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
