"""Read files of torch.export.save, with everything validated: content that torch.export.load would execute is
rejected."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...files import require_file
from ...ops.errors import UnsupportedError, UsageError, brief
from ...ops.types import DType
from ..values import BFLOAT16, is_bfloat16

# The library ----------------------------------------------------------------------------------------------------------

_WIDTHS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_NUMPY: dict[str, DType] = {"bfloat16": BFLOAT16, **{name: np.dtype(name) for name in _WIDTHS}}


@cache
def library() -> Any:
    """Return the package torch. Raises UsageError if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        why = "PyTorch programs need the package torch, which is not installed; pip install 'opstage[torch]'"
        raise UsageError(why) from None


def dtype_of(dtype: Any) -> DType:
    """Return NumPy's dtype for one of PyTorch; marked float32 for bfloat16. Raises UnsupportedError."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NUMPY:
        raise UnsupportedError(f"elements of type {name} have no dtype here")
    return _NUMPY[name]


def part_dtype(dtype: Any) -> DType:
    """Return the dtype of the real part of a complex dtype, or any other dtype itself. Raises UnsupportedError."""
    return dtype_of(dtype.to_real() if dtype.is_complex else dtype)


def array_of(tensor: Any) -> Any:
    """Return a tensor's elements as an array that owns its memory. Raises UnsupportedError for elements without a
    dtype."""
    torch = library()
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"its tensor is {tensor.layout}; only dense ones are read")
    dtype = dtype_of(tensor.dtype)
    tensor = tensor.detach()
    if is_bfloat16(dtype):
        tensor = tensor.to(torch.float32)
    array = tensor.to("cpu", copy=True).contiguous().numpy()
    return array.astype(np.float32) if array.dtype == np.float16 else array


def constant_of(tensor: Any) -> Any:
    """Do the same as `array_of`, also for complex tensors."""
    if not tensor.is_complex():
        return array_of(tensor)
    real, imaginary = (array_of(each) for each in (tensor.real, tensor.imag.resolve_neg()))
    return real + 1j * imaginary


_MOST_ENTRIES = 100_000
_MOST_LEVELS = 200
_TENSOR = re.compile(r"(weight|tensor)_\d+")
"""The names of entries with the bytes of a tensor; those of others are pickles, whatever a list says."""

_TARGET = re.compile(r"torch\.ops(\.\w+)+|_operator\.\w+|math\.\w+|torch\._?sym_\w+")
"""The functions that a graph may call."""

_EXPRESSIONS = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call)
_FUNCTIONS = re.compile(
    r"Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|ModularIndexing|Max|Min|Where|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|IntTrueDiv|"
    r"FloatTrueDiv|ToFloat|TruncToInt|FloorToInt|CeilToInt|RoundToInt|PowByNatural|FloatPow|Identity|Integer|Symbol|"
    r"LShift|RShift|OpaqueUnaryFn_\w+"
)


def read(source: str | os.PathLike[str]) -> Any:
    """Return the ExportedProgram in a file of torch.export.save.

    Nothing in the file is executed: pickles may contain only tensors, functions must be ops, and sizes arithmetic.
    Raises UsageError for anything else.
    """
    path = Path(source)
    require_file(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    torch = library()
    _require_harmless(torch, str(path), data)
    try:
        with warnings.catch_warnings(), _silent("torch.export"):
            warnings.simplefilter("ignore")
            return torch.export.load(io.BytesIO(data))
    except Exception as error:  # torch's own errors, of any class
        _refuse(str(path), f"it is damaged, or written by another version of PyTorch: {brief(str(error))}")


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Silence a logger: PyTorch logs the whole traceback of what becomes a single error here."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _refuse(where: str, why: str) -> NoReturn:
    raise UsageError(f"{where} is not a program of torch.export.save that can be read: {why}")


def _require_harmless(torch: Any, where: str, data: bytes) -> None:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError):
        hint = "it is a pickle" if data[:1] == b"\x80" else "it is not an archive, or a truncated one"
        _refuse(where, f"{hint}; save the program that torch.export.export gives with torch.export.save")
    with archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if len(entries) > _MOST_ENTRIES:
            _refuse(where, f"it has {len(entries):,} entries")
        graphs = [name for name in names if re.search(r"(^|/)models/[^/]+\.json$", name)]
        if not graphs:
            _refuse(where, _another_kind(names))
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(data) for entry in entries):
            _refuse(where, "its entries are compressed, which torch.export.save never does")
        if compiled := [name for name in names if "aotinductor" in name or name.endswith((".so", ".pyd", ".dll"))]:
            _refuse(where, f"it holds compiled code, {brief(compiled[0])}")
        if len({name.lower() for name in names}) < len(names):  # torch finds names whatever their case
            _refuse(where, "two of its entries have one name")
        try:
            raw = _raw_tensors(where, archive, names)
            for name in names:
                if name.lower() not in raw:
                    _require_harmless_entry(torch, where, name, archive, name in graphs)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            _refuse(where, f"it is damaged: {brief(str(error))}")


def _another_kind(names: list[str]) -> str:
    if any(name.endswith("constants.pkl") for name in names):
        return "it is a TorchScript file; export the module with torch.export.export"
    if any(name.endswith("data.pkl") for name in names):
        return (
            "it is a pickle of torch.save, which holds weights and no program; `opstage import-weights` reads weights "
            "from safetensors files"
        )
    return "it has no graph of an ExportedProgram"


def _raw_tensors(where: str, archive: Any, names: list[str]) -> set[str]:
    """Return the entries, in lower case, that torch.export.load reads as bytes of a tensor: those that its lists never
    give as pickles. Such bytes may be anything, the beginning of a pickle too."""
    given: dict[bool, set[str]] = {True: set(), False: set()}
    for name in names:
        folder, _, file = name.lower().rpartition("/")
        if not file.endswith("_config.json"):
            continue
        parsed = _parsed(where, archive.read(name))
        listed = parsed.get("config") if isinstance(parsed, dict) else None
        for each in listed.values() if isinstance(listed, dict) else ():
            if isinstance(each, dict):
                given[each.get("use_pickle") is not False].add(f"{folder}/{each.get('path_name')}".lower())
    return {name for name in given[False] - given[True] if _TENSOR.fullmatch(name.rpartition("/")[2])}


def _require_harmless_entry(torch: Any, where: str, name: str, archive: Any, is_graph: bool) -> None:
    if is_graph:
        _require_harmless_graph(where, archive.read(name))
    elif name.endswith(".json"):
        _parsed(where, archive.read(name))
    elif "/sample_inputs/" in name or "/data/" in name:
        _require_tensors(torch, where, name, archive.read(name))


def _require_tensors(torch: Any, where: str, name: str, data: bytes) -> None:
    """Reject a pickle of anything but tensors, since torch.export.load would execute it."""
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # torch's own errors, of any class
        _refuse(where, f"{brief(name)} is a pickle of more than tensors, which may run any code")


def _parsed(where: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(where, f"it is damaged: {brief(str(error))}")


def _require_harmless_graph(where: str, data: bytes) -> None:
    """Reject functions that are not ops, and size expressions that are not arithmetic."""
    for key, value in _entries(where, _parsed(where, data), 0):
        if key == "target" and not isinstance(value, (dict, list)):
            if value is not None and "/" not in str(value) and _names_function(str(value)):
                _refuse(where, f"its graph calls {brief(str(value))}, which is not an op")
        elif key == "expr_str" and not _is_arithmetic(str(value)):
            _refuse(where, f"a size in it is {brief(str(value))}, which is not arithmetic")


def _names_function(target: str) -> bool:
    """Whether the text names something in a module that torch.export.load would look up, other than an op."""
    return target.startswith(("torch.", "_operator.", "math.")) and not _TARGET.fullmatch(target)


def _entries(where: str, value: Any, level: int) -> Iterator[tuple[str, Any]]:
    if level > _MOST_LEVELS:
        _refuse(where, f"its graph is nested more than {_MOST_LEVELS} deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _entries(where, inner, level + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _entries(where, inner, level + 1)


def _is_arithmetic(text: str) -> bool:
    """Whether a text, which sympy would evaluate as Python, is arithmetic of names and numbers."""
    if len(text) > 10_000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    texts: set[ast.AST] = set()  # names in quotes, as in Symbol('s0', positive=True); a walk visits the call first
    for node in nodes:
        if isinstance(node, (ast.operator, ast.unaryop, ast.cmpop, ast.keyword)):
            continue
        if not isinstance(node, _EXPRESSIONS):
            return False
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)):
            if not (node in texts and isinstance(node.value, str) and node.value.isidentifier()):
                return False
            continue
        if isinstance(node, ast.Pow) or (isinstance(node, ast.Name) and node.id.startswith("__")):
            return False
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and _FUNCTIONS.fullmatch(node.func.id)):
                return False
            symbol = node.func.id == "Symbol" and all(isinstance(a, ast.Constant) for a in node.args)
            texts.update(node.args if symbol else ())
    return True
