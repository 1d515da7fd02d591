"""What is not a program of torch.export, damaged and hostile files: one clear error each, nothing is run."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opstage
import opstage.torch
from opstage.ops.errors import DtypeError, OpstageError, ShapeError, UnsupportedError, UsageError
from tests.parity.exported import models


def _program() -> Any:
    batch = torch.export.Dim("batch", max=8)
    return torch.export.export(models.mlp().eval(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},))


def _saved() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(_program(), buffer)
    return buffer.getvalue()


def _changed(change: Callable[[str, bytes], bytes | None], *, compress: bool = False, more: Any = ()) -> bytes:
    """The saved program with entries changed, left out where that gives None."""
    out = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(_saved())) as old, zipfile.ZipFile(out, "w", kind) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name, data in more:
            new.writestr(f"{old.namelist()[0].split('/')[0]}/{name}", data)
    return out.getvalue()


class Trap:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("trapped"),))


def _torch_saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _in_graph(old: str, new: str) -> Callable[[str, bytes], bytes]:
    return lambda name, data: data.replace(old.encode(), new.encode()) if "/models/" in name else data


def _sized(name: str, data: bytes) -> bytes:
    if "/models/" not in name:
        return data
    graph = json.loads(data)

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "expr_str" in value:
                value["expr_str"] = "__import__('pathlib').Path('trapped').touch()"
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(graph)
    return json.dumps(graph).encode()


def _unpickled(path: str) -> Callable[[str, bytes], bytes]:
    """The first weight is a pickle of protocol 0, which has no mark at its beginning, and a list calls it one."""

    def change(name: str, data: bytes) -> bytes:
        if name.endswith("/weight_0"):
            return pickle.dumps(Trap(), protocol=0)
        if name.endswith("model_weights_config.json"):
            listed = json.loads(data)
            meta = dict(next(iter(listed["config"].values())), path_name=path, use_pickle=True)
            listed["config"]["trap"] = meta
            return json.dumps(listed).encode()
        return data

    return change


SCRIPT = torch.jit.script(torch.nn.Linear(2, 2))


def _script() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(SCRIPT, buffer)
    return buffer.getvalue()


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "pickle": (lambda: pickle.dumps({"a": 1}), "it is a pickle"),
    "weights": (lambda: _torch_saved({"a": torch.ones(2)}), "which holds weights and no program"),
    "TorchScript": (_script, "it is a TorchScript file"),
    "text": (lambda: b"import torch", "it is not an archive"),
    "empty": (lambda: b"", "it is not an archive"),
    "truncated": (lambda: _saved()[:-2000], "it is not an archive, or a truncated one"),
    "compressed": (lambda: _changed(lambda name, data: data, compress=True), "its entries are compressed"),
    "no weights": (lambda: _changed(lambda name, data: None if "weight_0" in name else data), "damaged"),
    "no json": (lambda: _changed(lambda name, data: b"{" if "/models/" in name else data), "damaged"),
    "compiled": (
        lambda: _changed(lambda name, data: data, more=[("data/aotinductor/model/x.so", b"x")]),
        "it holds compiled code",
    ),
    "trapped inputs": (
        lambda: _changed(lambda name, data: _torch_saved(Trap()) if "sample_inputs" in name else data),
        "a pickle of more than tensors",
    ),
    "trapped constant": (
        lambda: _changed(lambda name, data: data, more=[("data/constants/custom_obj_0", pickle.dumps(Trap()))]),
        "a pickle of more than tensors",
    ),
    "old pickle for a weight": (lambda: _changed(_unpickled("weight_0")), "a pickle of more than tensors"),
    "pickle by another case": (lambda: _changed(_unpickled("WEIGHT_0")), "a pickle of more than tensors"),
    "one name twice": (
        lambda: _changed(lambda name, data: data, more=[("data/weights/WEIGHT_0", b"x")]),
        "two of its entries have one name",
    ),
    "calls a function": (
        lambda: _changed(_in_graph("torch.ops.aten.relu_.default", "torch.os.system")),
        "its graph calls 'torch.os.system'",
    ),
    "sizes that are code": (lambda: _changed(_sized), "which is not arithmetic"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_one_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = FILES[name]
    Path("net.pt2").write_bytes(make())
    with pytest.raises(UsageError, match="is not a program of") as caught:
        opstage.torch.load("net.pt2")
    assert message in str(caught.value)
    assert not Path("trapped").exists()


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    data, file = _saved(), tmp_path / "net.pt2"
    for length in range(0, len(data), max(len(data) // 60, 1)):
        file.write_bytes(data[:length])
        with pytest.raises(OpstageError):
            opstage.torch.load(file)


def test_a_saved_program_is_that_program(tmp_path: Path) -> None:
    program, file = _program(), tmp_path / "net.pt2"
    torch.export.save(program, file)
    ours, again = opstage.torch.load(program), opstage.torch.load(file, sizes={"input_0": "batch"})
    assert str(ours.inputs) == str(again.inputs) and "batch <= 8" in str(again.inputs)
    assert list(again.params) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert again.check().ok


def test_other_objects_are_named() -> None:
    for value, hint in (
        (torch.nn.Linear(2, 2), "export it with torch.export.export"),
        (SCRIPT, "TorchScript is not read"),
        (torch.ones(2), "takes a torch.export.ExportedProgram"),
        (None, "takes a torch.export.ExportedProgram"),
    ):
        with pytest.raises(UsageError, match=hint):
            opstage.torch.load(value)


class Unknown(torch.nn.Module):
    """Two ops that have no meaning here."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.special.bessel_j0(self.inner(x)), torch.linalg.matrix_exp(x @ x.T), x + 1


def test_all_unknown_ops_are_listed() -> None:
    with pytest.raises(UnsupportedError) as caught:
        opstage.torch.load(torch.export.export(Unknown(), (torch.ones(4, 4),)))
    text = str(caught.value)
    assert "Unknown cannot be imported" in text
    assert (
        "bessel_j0" in text and "matrix_exp" in text and "test_bad_files.py" in text and "the op is not known" in text
    )


class Function(torch.nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[x > 0], "cannot be imported"),
        (lambda x: x.add_(1), "changes its input 'x' in place"),
        (lambda x: x.to(torch.bfloat16) * 2, "a cast to bfloat16"),
    ],
    ids=["sizes that depend on values", "inputs changed in place", "short floats"],
)
def test_what_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        opstage.torch.load(torch.export.export(Function(function), (torch.ones(4),)))


def test_names_that_no_size_has() -> None:
    with pytest.raises(UsageError, match="no size is called 'bath'"):
        opstage.torch.load(_program(), sizes={"bath": "rows"})


def test_parameters_are_copies() -> None:
    module = models.mlp().eval()
    model = opstage.torch.load(torch.export.export(module, (torch.ones(4, 6),)))
    before = model.params["0.weight"].copy()
    with torch.no_grad():
        module[0].weight.add_(1)
    assert (model.params["0.weight"] == before).all()


def test_ties_and_frozen_parameters() -> None:
    model = opstage.torch.load(torch.export.export(models.Tied(), (torch.ones(2, 3, dtype=torch.int64),)))
    assert dict(model.ties) == {"head.weight": "table.weight"} and model.frozen == ("head.bias",)
    assert list(model.params) == ["table.weight", "head.bias"]


def test_torch_is_imported_when_it_is_needed_and_is_the_real_one() -> None:
    script = "import sys, opstage, opstage.torch; assert 'torch' not in sys.modules; import torch; torch.ones(1)"
    subprocess.run([sys.executable, "-c", script], check=True)
    script = (
        "import sys; sys.modules['torch'] = None; import opstage.torch\n"
        "try: opstage.torch.load('x.pt2')\n"
        "except opstage.UsageError as e: assert \"pip install 'opstage[torch]'\" in str(e), e\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_inputs_of_other_sizes_than_it_was_exported_with_are_refused() -> None:
    """The 8 of a mean by hand stands in the program as a number; PyTorch's own guard refuses 9 and 17 too."""
    batch, mean = torch.export.Dim("batch", min=2, max=16), Function(lambda x: x.sum(1) / x.shape[1])
    model = opstage.torch.load(torch.export.export(mean, (torch.ones(4, 8),), dynamic_shapes=({0: batch},)))
    for rows in (1, 4):
        assert opstage.run(model, model.params, np.ones((rows, 8), np.float32)).tolist() == [1] * rows
    with pytest.raises(ShapeError, match="axis 1 must have 8"):
        opstage.run(model, model.params, np.ones((4, 9), np.float32))
    with pytest.raises(ShapeError, match="batch <= 16, which does not hold of batch = 17"):
        opstage.run(model, model.params, np.ones((17, 8), np.float32))
    with pytest.raises(DtypeError, match="of floats, but is int64"):
        opstage.run(model, model.params, np.ones((4, 8), np.int64))


@pytest.mark.parametrize("beginning", [b"\x80\xa2\xb1\xbe", b"\x80\x02c\x00", b"PK\x03\x04"])
def test_weights_may_begin_as_pickles_do(beginning: bytes, tmp_path: Path) -> None:
    """One float in 256 has the first byte of a pickle."""
    changed = _changed(lambda name, data: beginning + data[4:] if name.endswith("/weight_0") else data)
    (tmp_path / "net.pt2").write_bytes(changed)
    model = opstage.torch.load(tmp_path / "net.pt2")
    assert any(np.asarray(each).tobytes().startswith(beginning) for each in model.params.values())
