"""Ways into Opstage from outside, and what an independent reader makes of what they read."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import opstage.onnx
from opstage import Spec
from opstage.config import Layer
from opstage.data import from_csv, from_idx, from_npy, from_npz
from opstage.data.csv_and_parquet import read_table
from opstage.data.image_folder import read_images
from opstage.data.preparation import ArgumentData, Preparation
from opstage.data.text import read_text
from opstage.files import Document
from opstage.interop.weights import import_weights, read_state_dict, read_weights
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.text import large_constants, parse
from opstage.onnx import InternalError
from opstage.ops.errors import OpstageError
from opstage.runs.directory import RunDirectory, read_run
from opstage.runs.metrics_log import MetricLog, read_metrics
from opstage.runs.run import train
from opstage.runs.run_setup import prepare
from opstage.runs.settings import configure, configure_resumed
from opstage.runs.text_generation import load_gpt
from opstage.safetensors_files import map_tensors, read_header, read_tensors
from opstage.training import checkpoint
from opstage.training.headers import array_headers

from . import corpus
from .limits import Mismatch


def _same(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    if list(found) != list(expected):
        raise Mismatch(f"{what}: {list(found)} instead of {list(expected)}")
    for name, array in found.items():
        other = expected[name]
        if array.shape != other.shape or array.dtype != other.dtype.newbyteorder("="):
            raise Mismatch(f"{what}: {name}: {array.shape} {array.dtype} instead of {other.shape} {other.dtype}")
        if not np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            raise Mismatch(f"{what}: {name} has other values")


# Data ----------------------------------------------------------------------------------------------------------------


def npy_(path: Path) -> None:
    dataset = from_npy(x=path)
    _same({"x": dataset["x"].astype(dataset["x"].dtype.newbyteorder("="))}, {"x": np.load(path)}, "np.load")


def npz(path: Path) -> None:
    dataset = from_npz(path)
    with np.load(path) as archive:
        expected = {name: archive[name] for name in dataset.names}
    found = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in zip(dataset.names, dataset.arrays)}
    _same(found, expected, "np.load")
    headers = array_headers(path)
    for name, array in found.items():
        if headers[name].shape != array.shape:
            raise Mismatch(f"its header says {headers[name].shape}, its array is {array.shape}")


def npz_headers(path: Path) -> None:
    array_headers(path)


def csv_(path: Path) -> None:
    dataset = from_csv(path)
    found = {"x": dataset["x"], "y": dataset["y"].astype(float)}
    wrong: list[Exception] = []
    for delimiter in ",;\t":  # what it is read as, it must be by one of them
        try:
            _same(found, _read_csv(path, delimiter, dataset.classes), "csv")
        except (Mismatch, ValueError, IndexError) as error:
            wrong.append(error)
        else:
            return
    raise wrong[0]


def categories(path: Path) -> None:
    """Rows for a run that knows `kind` as blue or red, one-hot."""
    part = ArgumentData("x", ("a", "kind"), "float", (3,), categories=((), ("blue", "red")), one_hot=True)
    x = Preparation("table", (part,)).inputs(path, ["x"])["x"]
    if x.shape[1] != 3 or not np.isfinite(x).all() or not (np.sort(x[:, 1:]) == [0, 1]).all():
        raise Mismatch("a row is of no category, or of two")


def _read_csv(path: Path, delimiter: str, classes: Any) -> dict[str, Any]:
    import csv

    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter=delimiter) if row][1:]
    if classes is not None:
        named = [row.pop().strip() for row in rows]
        rows = [[*row, str(classes.index(name))] for row, name in zip(rows, named, strict=True)]
    expected = np.array([[float(cell) for cell in row] for row in rows])
    return {"x": expected[:, :-1], "y": expected[:, -1]}


def parquet(path: Path) -> None:
    table = read_table(path, lambda names: (list(names), {"y": "class"}))
    if len({len(values) for values in table.columns.values()}) > 1:
        raise Mismatch("its columns differ in length")


def image(path: Path) -> None:
    if read_images([path], size=None, channels=3).dtype != np.uint8:
        raise Mismatch("it is not of bytes")


def preparation(path: Path) -> None:
    made = Preparation.of(Document.of(path.read_bytes(), str(path)))
    if Preparation.of(Document(made.to_document(), "again")) != made:
        raise Mismatch("it is another one when it is kept again")


def idx_(path: Path) -> None:
    array = from_idx(x=path)["x"]
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        import gzip

        data = gzip.decompress(data)
    if array.nbytes != len(data) - 4 - 4 * data[3]:
        raise Mismatch(f"{array.nbytes} bytes of {len(data)}")


def text(path: Path) -> None:
    read_text(path).tobytes()


# Tensors and checkpoints ---------------------------------------------------------------------------------------------


def safetensors_(path: Path) -> None:
    found = read_tensors(path)
    expected = safetensors.numpy.load(path.read_bytes())
    _same(dict(sorted(found.items())), {name: expected[name] for name in sorted(expected)}, "safetensors")
    for name, header in read_header(path).items():
        if header.shape != found[name].shape:
            raise Mismatch(f"{name}: {header}")


def safetensors_header(path: Path) -> None:
    read_header(path)


def mapped(path: Path) -> None:
    _same(map_tensors(path)[0], read_tensors(path), "read_tensors")


def sharded(folder: Path) -> None:
    expected = {name: array for file in folder.glob("*.safetensors") for name, array in read_tensors(file).items()}
    found = read_weights(folder)
    _same(found, {name: expected[name] for name in found}, "its files")


@cache
def _trainer() -> Any:
    from opstage import optim, scalar_trainer

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.square(ops.linear(params["fc"]["weight"], params["fc"]["bias"], x)))

    params = {"fc": {"weight": np.ones((3, 4), np.float32), "bias": np.zeros(3, np.float32)}}
    made = scalar_trainer(loss, params)
    return made, made.init_optim(optim.adam(lr=0.1))


def imported(path: Path) -> None:
    trainer, _ = _trainer()
    import_weights(trainer, read_state_dict(path)).table()


def generated(path: Path) -> None:
    from opstage.models import gpt

    load_gpt(path, gpt.Config(length=8, width=8, depth=1, heads=2))


def checkpoint_(folder: Path) -> None:
    from opstage.training.headers import check_checkpoint

    checkpoint.load(folder)
    check_checkpoint(folder, {"w": Spec("3 4")})


@cache
def _data() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="opstage-fuzz-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return corpus.digits_in(folder)


@cache
def _task() -> Any:
    values = {**corpus.SETTINGS, "data": {"file": _data(), "batch_size": 8}}
    return prepare(configure(values=values, environ={}).settings)


def checkpoint_used(folder: Path) -> None:
    """Loaded, put into a trainer, and stepped: what loads must train."""
    snapshot = checkpoint.load(folder)
    task = _task()
    state = checkpoint.restore(task.trainer, snapshot, task.optimizer)
    batch = next(iter(task.batches.epoch(0))) if hasattr(task.batches, "epoch") else None
    if batch is not None:
        task.trainer.train_step(task.optimizer, state, *batch)


def resumed(folder: Path) -> None:
    """A run that has ended goes on from its end: all of its files are read, and its report is made anew."""
    flag = Layer({"data.file": str(_data())}, {"data.file": "--data"}, text=True)
    configuration = configure_resumed(folder, flags=[flag], environ={})
    train(configuration, resume=True)


def run_directory(folder: Path) -> None:
    configuration = configure_resumed(folder, environ={})
    configuration.toml()
    with RunDirectory.reopen(folder):
        read_run(folder / "run.json")
        read_metrics(folder / "metrics.jsonl")
        MetricLog(folder / "metrics.jsonl", steps=3, epochs=1).close()
    checkpoint.load(folder / "checkpoint")


# Settings ------------------------------------------------------------------------------------------------------------


# Sizes ---------------------------------------------------------------------------------------------------------------


# Graphs --------------------------------------------------------------------------------------------------------------


@cache
def _constants() -> dict[str, Any]:
    return {name: value for graph in corpus.graphs() for name, value in large_constants(graph).items()}


def graph_text(text: str) -> None:
    _drawn(parse(text, _constants()))


def graph_file(path: Path) -> None:
    _drawn(Graph.load(path))


def _drawn(graph: Graph) -> None:
    """A graph that was read can be shown in every way, kept, and read again."""
    text = str(graph)
    again = parse(text, large_constants(graph))
    if str(again) != text:
        raise Mismatch("its text, read again, is another one")
    graph.to_dot(), graph.to_svg(), graph.to_html()
    with tempfile.TemporaryDirectory() as folder:
        graph.save(Path(folder) / "g")
        try:
            graph.to_onnx(Path(folder) / "g.onnx")
        except OpstageError:  # what ONNX has no word for
            pass


def graph_explained(text: str) -> None:
    parse(text, _constants()).explain()


def draw_all() -> None:
    """Draw valid graphs, so that what that imports is there before a case is given its time and memory."""
    for graph in corpus.graphs():
        _drawn(graph)
    for graph in corpus.graphs()[1:3]:
        graph.explain()


# Models of other libraries -------------------------------------------------------------------------------------------


def onnx_model(path: Path) -> None:
    """Loaded, and checked for every size; what a check finds is wrong with the model, never with the checker."""
    file = path / "model.onnx" if path.is_dir() else path
    try:
        report = opstage.onnx.load(file).check()
    except InternalError as error:
        raise Mismatch(str(error)) from error
    if "this is a fault of Opstage's" in str(report):
        raise Mismatch(str(report))
