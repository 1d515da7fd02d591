"""`write_source`: write an imported model as a Python file and a weights file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from keyword import iskeyword
from os import PathLike
from pathlib import Path
from typing import final

from ...atomic import write_file
from ...imported.model import ImportedModel
from ...imported.network import supervised
from ...ops.errors import UsageError
from ...tensors import encode
from .module import module_text
from .proof import require_same


@final
@dataclass(frozen=True)
class WrittenModel:
    """The files of a model, its source and weights, with the numbers of parameters and lines."""

    source: Path
    weights: Path
    parameters: int
    lines: int


def write_source(
    model: ImportedModel,
    out: str | PathLike[str],
    *,
    origin: str = "an ONNX model",
    loss: str = "",
    output: str = "",
    force: bool = False,
) -> WrittenModel:
    """Write a model as Opstage source to `out`, a `.py` file, and its weights to a safetensors file next to it.

    loss, output   the defaults for training: see `opstage.imported.network.supervised`
    force          overwrite existing files

    The source is a model file: `opstage check`, `graph`, `train` and `predict` take it. It is proved to compute what
    the model computes, op by op, before anything is written. Raises UsageError for an invalid module name and for
    existing files, UnsupportedError for a program that cannot be written as text.
    """
    source = Path(out)
    if source.suffix != ".py" or not source.stem.isidentifier() or iskeyword(source.stem):
        raise UsageError(f"{source}: expected the name of a Python module, as in my_model.py")
    weights = source.with_suffix(".safetensors")
    for path in (source, weights):
        if not force and os.path.lexists(path):
            raise UsageError(f"{path} is there already; choose another name, or write over it with --force")
    supervised(model.network, None, loss=loss, output=output)  # raises if either is wrong
    made = module_text(model.network, origin=origin, weights=weights.name, loss=loss, output=output)
    require_same(made, model.network)
    _write_both(weights, encode(made.tensors, {"format": "pt"}), source, made.text.encode())
    count = sum(array.size for array in model.params.values())
    return WrittenModel(source, weights, int(count), made.text.count("\n"))


def _write_both(weights: Path, tensors: bytes, source: Path, text: bytes) -> None:
    """Write two files, or leave both unchanged."""
    before = weights.read_bytes() if weights.is_file() else None
    write_file(weights, [tensors])
    try:
        write_file(source, [text])
    except BaseException:
        if before is None:
            weights.unlink()
        else:
            write_file(weights, [before])
        raise
