"""magika, which tells the type of a file from its bytes: an embedding, a convolution over its places, a maximum."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage.onnx

from .wheels import Runtime, exported, file_in, fine_tuned, require_close, values

ROOT = Path(__file__).parents[2]
FILES = {
    "opstage/api.py": "python",
    "opstage/interop/onnx/file.py": "python",
    "README.md": "markdown",
    "CHANGELOG.md": "markdown",
    "Makefile": "makefile",
    "docs/stylesheets/opstage.css": "css",
    "docs/pictures/report.png": "png",
}
BATCH = "unk__214"
"""The file's name for the number of rows, of which it keeps the first billion."""


@cache
def labels() -> list[str]:
    config = json.loads(file_in("magika", "config.min.json").read_text())
    return list(config["target_labels_space"])


@cache
def model() -> Any:
    return opstage.onnx.load(path(), where=[f"{BATCH} <= 1000000000"])


def path() -> Path:
    return file_in("magika", "model.onnx")


def features(file: Path, size: int = 1024, padding: int = 256) -> Any:
    """The first and the last bytes that are no space, as magika takes them."""
    data = file.read_bytes()
    begin, end = data[: 4 * size].lstrip()[:size], data[-4 * size :].rstrip()[-size:]
    row = np.full(2 * size, padding, np.int32)
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    row[2 * size - len(end) :] = np.frombuffer(end, np.uint8)
    return row


def rows() -> Any:
    return np.stack([features(ROOT / name) for name in FILES])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_it_is_the_runtime_s_network_at_every_size(backend: str) -> None:
    report = model().check()
    assert report.ok, str(report)
    runtime, x = Runtime(path()), rows()
    for count in (1, len(x)):
        require_close(values(model(), model().params, x[:count], backend=backend), runtime(bytes=x[:count]))


def test_it_knows_the_files_of_this_repository() -> None:
    (found,) = values(model(), model().params, rows(), backend="compiled")
    assert [labels()[i] for i in found.argmax(-1)] == list(FILES.values())


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """Cross entropy of its probabilities, whose logarithms are logits of theirs."""
    return ops.cross_entropy(ops.log(model()(ops, params, x)["target_label"]), y)


def head_loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """A head of its own on the logarithms, for two kinds of file."""
    p = model()(ops, params["network"], x)["target_label"]
    logits = ops.log(ops.add(p, ops.full(shape=p.shape, value=1e-9)))
    return ops.cross_entropy(ops.linear(params["head"], None, logits), y)


def test_it_learns_other_labels_and_goes_back() -> None:
    x, y = rows(), np.array([labels().index(name) for name in ("rust", "c", "html", "html", "java", "xml", "gif")])
    specs = (*model().batch, opstage.Spec((BATCH,), "int64"))
    params, losses = fine_tuned(loss, model().params, specs, (x, y), rate=1e-3, steps=6)
    assert losses[-1] < 0.5 * losses[0], losses
    back = exported(model(), params)
    (name,) = [each.name for each in back.session.get_inputs()]
    require_close(back(**{name: x}), values(model(), params, x, backend="eager"))
    require_close(exported(model(), model().params)(**{name: x[:2]}), Runtime(path())(bytes=x[:2]))


def test_a_new_head_is_trained_on_it() -> None:
    rng = np.random.default_rng(0)
    params = {"network": model().params, "head": (0.02 * rng.standard_normal((2, len(labels())))).astype(np.float32)}
    y = np.array([int(name in ("python", "makefile")) for name in FILES.values()])
    specs = (*model().batch, opstage.Spec((BATCH,), "int64"))
    _, losses = fine_tuned(head_loss, params, specs, (rows(), y), rate=1e-3, steps=6)
    assert losses[-1] < 0.5 * losses[0], losses
