"""Valid files of every kind, small, made by this project's own writers and by NumPy."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from opstage import Options, optim
from opstage.interpreters.graph import record
from opstage.interpreters.graph.text import show_graph
from opstage.models import gpt, mlp, model
from opstage.ops.dims import DimScope
from opstage.ops.trees import flatten, paths
from opstage.ops.types import FLOAT32, INT64, TensorType
from opstage.runs.run import train
from opstage.runs.settings import configure
from opstage.safetensors_files import encode
from opstage.training.program_check import record_model

ROWS = 12


@cache
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(ROWS, 4)).astype(np.float32), "y": rng.integers(0, 3, ROWS)}


def npy() -> list[bytes]:
    made = []
    for array in (
        arrays()["x"],
        arrays()["y"],
        np.asfortranarray(arrays()["x"]),
        np.ones((2, 3), ">f8"),
        np.ones(3, bool),
    ):
        file = io.BytesIO()
        np.save(file, array)
        made.append(file.getvalue())
    return made


def npz() -> list[bytes]:
    made = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **arrays())
        made.append(file.getvalue())
    return made


def csv() -> list[bytes]:
    rows = [",".join([*(f"{v:.3g}" for v in x), str(y)]) for x, y in zip(arrays()["x"], arrays()["y"])]
    text = "\n".join(["a,b,c,d,label", *rows]) + "\n"
    return [text.encode(), b'\xef\xbb\xbf"a","b b",y\r\n1,2,3\r\n\r\n"4",5e0,-6\r\n', b"p,q\n1e308,0.5\n-0,1\n"]


def named_csv() -> list[bytes]:
    return [b"a,b,y\n1,2,cat\n3,4,dog\n5,6,cat\n", b"a,kind\n0.5,x y\n1,z\n"]


def category_csv() -> list[bytes]:
    return [b"a,kind\n1,red\n3,blue\n5,red\n", b"kind;more;a\nblue;?;1e3\nred;?;-2\n"]


def separated_csv() -> list[bytes]:
    return [b"a;b;y\n1;2.5;cat\n3;4;dog\n", b'"a"\t"b, c"\ty\n1\t2\t0\n3\t4\t1\n']


def parquet() -> list[bytes]:
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {"a": np.arange(9) / 7, "b": np.arange(9), "y": ["cat", "dog", "emu"] * 3}
    made = []
    for packing in ("none", "snappy", "zstd"):
        file = io.BytesIO()
        write_table(pyarrow.table(columns), file, compression=packing, write_page_checksum=packing == "zstd")
        made.append(file.getvalue())
    return made


def images() -> list[bytes]:
    from PIL import Image

    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    made = []
    for form in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, form)
        made.append(file.getvalue())
    return made


def preparation() -> list[bytes]:
    scaling = {"center": [1.0, 2.5], "width": [0.5, 3.0]}
    part = {"argument": "x", "columns": ["a", "b"], "kind": "float", "shape": [2], "image": False, "label": False}
    label = {"argument": "y", "columns": ["c"], "kind": "int", "shape": [], "image": False, "label": True}
    parts = [{**part, "scaling": scaling}, {**label, "scaling": None}]
    document = {"format": 1, "form": "table", "parts": parts, "classes": ["cat", "dog"], "resized": False}
    named = {**part, "shape": [3], "scaling": None, "categories": [[], ["red", "blue"]], "one_hot": True}
    documents = [document, {**document, "parts": [named, {**label, "scaling": None}]}]
    return [json.dumps(each).encode() for each in documents]


def idx() -> list[bytes]:
    images = np.arange(ROWS * 9, dtype=np.uint8).reshape(ROWS, 3, 3)
    plain = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()
    floats = b"\0\0\x0d\x01\0\0\0\x05" + np.arange(5, dtype=">f4").tobytes()
    return [plain, floats, gzip.compress(plain, mtime=0)]


def safetensors() -> list[bytes]:
    weights = {
        "fc.weight": np.ones((3, 4), np.float32),
        "fc.bias": np.zeros(3, np.float32),
        "n": np.zeros((), np.int64),
    }
    return [encode(weights, {"format": "pt"}), encode({"m": np.ones((2, 0), bool), "h": np.ones(3, np.float16)})]


def sharded() -> dict[str, bytes]:
    """Weights in two files and their index."""
    held = {"1.safetensors": {"a": np.ones(3, np.float32)}, "2.safetensors": {"b": np.zeros(2), "c": np.arange(2)}}
    listed = {name: file for file, tensors in held.items() for name in tensors}
    index = json.dumps({"metadata": {"total_size": 44}, "weight_map": listed}).encode()
    return {"model.safetensors.index.json": index, **{file: encode(tensors) for file, tensors in held.items()}}


SETTINGS: dict[str, dict[str, Any]] = {
    "run": {"model": "mlp", "epochs": 2, "plot": False, "log_every": 1},
    "model": {"hidden": (5,)},
}


def digits_in(folder: Path) -> Path:
    """A data file of forty images that show nothing."""
    rng = np.random.default_rng(1)
    images = rng.normal(size=(40, 1, 8, 8)).astype(np.float32)
    np.savez(folder / "data.npz", x=images, y=rng.integers(0, 10, 40))
    return folder / "data.npz"


@cache
def _run() -> dict[str, bytes]:
    """The files of a run directory of a small mlp, trained for two epochs on a file of twelve rows."""
    with tempfile.TemporaryDirectory() as folder:
        data = digits_in(Path(folder))
        out = Path(folder) / "run"
        values = {**SETTINGS, "data": {"file": data, "batch_size": 8}}
        values["run"] = {**SETTINGS["run"], "out": out}
        train(configure(values=values, environ={}))
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def run_directory() -> dict[str, bytes]:
    """What reading a run takes, less the report."""
    return {name: data for name, data in _run().items() if not name.endswith((".html", "lock"))}


def gpt_weights() -> dict[str, bytes]:
    config = gpt.Config(length=8, width=8, depth=1, heads=2)
    declared = gpt.init(config)
    leaves, _ = flatten(declared)
    tensors = {name: np.full(leaf.shape, 0.01, np.float32) for name, leaf in zip(paths(declared), leaves)}
    return {"gpt.safetensors": encode(tensors)}


@cache
def graphs() -> list[Any]:
    """Graphs with constants large and small, symbolic sizes, exact reals, statics of every kind, a loop."""

    def step(ops: Any, w: Any, x: Any, y: Any) -> Any:
        h = ops.region("layers.0", lambda ops, x: ops.relu(ops.matmul(x, w)), x)
        h = h * ops.const([[0.5, -1.0, 2.0]])
        h = ops.concat([h, h * ops.sum(ops.const(np.arange(30, dtype=np.float32)))], axis=1)
        return (ops.cross_entropy(h, y), ops.reduce_mean(h, axis=0))

    def loop(ops: Any, w: Any, x: Any) -> Any:
        def turn(ops: Any, carry: Any, row: Any) -> Any:
            return ops.tanh(ops.add(carry, row)), ops.mul(carry, ops.const([1.0, 2.0, 3.0]))

        return ops.scan(turn, w, x)

    rows = DimScope().dim("B")
    names = ["w", "x", "y"]
    made = []
    for size in (rows, 2):
        types = [TensorType((4, 3), FLOAT32), TensorType((size, 4), FLOAT32), TensorType((size,), INT64)]
        made.append(record(step, types, FLOAT32, 7, names))
    made.append(record(loop, [TensorType((3,), FLOAT32), TensorType((5, 3), FLOAT32)], FLOAT32, 0, names[:2]))
    small = model("mlp", mlp.Config(hidden=(3,)))
    made.append(record_model(small, Options(), optim.adam(lr=0.1)))
    return made


def graph_texts() -> list[bytes]:
    return [show_graph(graph).encode() for graph in graphs()]


def graph_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g"
        made = []
        for graph in graphs():
            graph.save(path)
            made.append(path.read_bytes())
        return made
