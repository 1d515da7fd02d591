"""Compile kernels to machine code without a GPU: Python to PTX by numba-cuda, PTX to a cubin by nvJitLink.

A cubin is cached on disk under a digest of everything it depends on: the kernel's code, its signature, the GPU's
architecture, the versions of Python and of the compilers, and the options in this file. The compilers are identified by
the loaded libraries, which need not come from an installed wheel.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...ops.errors import UnsupportedError
from ..native.kernel_cache import cache_folder, read_code, write_code
from .buffer import Kernel, Signature, show

# The content of a kernel ----------------------------------------------------------------------------------------------

# Functions with the same content compile to the same machine code, wherever they were defined.


def digest_of(function: Callable[..., Any], *more: str) -> str:
    """Return the hexadecimal digest of a function from which kernels are compiled, and of other inputs."""
    digest = hashlib.sha256()
    for part in (*_function(function, set()), *more):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _function(function: Any, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    yield f"function {function.__name__} {function.__defaults__} {function.__kwdefaults__}"
    yield from _code(function.__code__)
    for cell in function.__closure__ or ():
        yield from _value(cell.cell_contents, seen)
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name
            yield from _value(function.__globals__[name], seen)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield f"{code.co_argcount} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _value(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield a function's content, an intrinsic's source file (it emits instructions), or the repr of anything else:
    numbers, types, modules."""
    inner = getattr(value, "py_func", value)  # of a function that numba compiles into its callers
    if isinstance(inner, FunctionType):
        yield from _function(inner, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(definition := getattr(value, "_defn", None), FunctionType):
        yield f"{definition.__qualname__} {text_of(definition.__code__.co_filename)}"
    else:
        yield f"{type(value).__qualname__} {value!r}"


@cache
def text_of(path: str) -> str:
    """Return the text of a source file at the first request."""
    return Path(path).read_text("utf-8")


# Compilation ----------------------------------------------------------------------------------------------------------

ComputeCapability = tuple[int, int]

_PACKAGES = ("numba", "numba_cuda", "llvmlite", "cuda.core", "cuda.bindings")
_HOW = (Path(__file__), Path(__file__).parent / "language.py")
"""The files that determine compiler options and the cached content."""
_LIBRARIES = ("nvvm", "libdevice", "nvJitLink")
_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
_ENVIRONMENT = re.compile(r"^\.common \.global .*NumbaEnv.*\n", re.MULTILINE)  # Python's, unused by kernels
_SHARED = re.compile(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]")
_DOUBLE = re.compile(r"\.f64\b")
_DIVISION = re.compile(r"\b(div|rem)\.[su]64\b")

_compiling = threading.Lock()
"""Held while compiling: numba compiles one function at a time."""


class Resources(NamedTuple):
    """The resources of a compiled kernel.

    registers, stack, spilled   per thread: registers, bytes of stack, bytes of spilled registers
    shared                      bytes per block
    doubles                     instructions with float64
    divisions                   64-bit integer divisions
    """

    registers: int
    stack: int
    spilled: int
    shared: int
    doubles: int
    divisions: int = 0


class CompiledKernel(NamedTuple):
    """A cubin and the name of its only kernel."""

    name: str
    cubin: bytes
    resources: Resources


def compile_kernel(kernel: Kernel, signature: Signature, cc: ComputeCapability) -> CompiledKernel:
    """Return the kernel for a signature and GPUs of compute capability `cc`, (9, 0) for sm_90, from disk if cached.

    Raises UnsupportedError, with the kernel's name and the compiler's message, if it does not compile.
    """
    how = [text_of(str(path)) for path in _HOW]
    key = digest_of(kernel, *signature, f"sm_{cc[0]}{cc[1]}", platform.python_version(), compilers(), *how)
    folder = cache_folder()
    path = None if folder is None else folder / f"{key[:32]}.cubin"
    kept = None if path is None else read_code(path, key)
    if kept is not None:
        return _unpacked(kept)
    with _compiling:
        compiled = _compiled(kernel, signature, cc)
    if path is not None:
        write_code(path, key, _packed(compiled))
    return compiled


def to_ptx(kernel: Kernel, signature: Signature, cc: ComputeCapability) -> str:
    """Return the PTX of a kernel, the input of nvJitLink. Numba's errors propagate."""
    from .language import cuda

    text, _ = cuda.compile_ptx(kernel, tuple(map(_numba_type, signature)), cc=cc)
    return str(text)


def _compiled(kernel: Kernel, signature: Signature, cc: ComputeCapability) -> CompiledKernel:
    try:
        name, ptx = _renamed(to_ptx(kernel, signature, cc), kernel)
        cubin, log = _linked(ptx, cc)
    except Exception as error:
        raise UnsupportedError(
            f"the kernel {show(kernel, signature)} did not compile for sm_{cc[0]}{cc[1]}: {type(error).__name__}: "
            f"{str(error).strip()}"
        ) from error
    return CompiledKernel(name, cubin, resources(log, ptx))


def _renamed(ptx: str, kernel: Kernel) -> tuple[str, str]:
    """Rename the kernel for profilers. Numba's own name has a counter of compilations."""
    entry = _ENTRY.search(ptx)
    assert entry is not None, "PTX without a kernel"
    name = "opstage_" + re.sub(r"\W", "_", kernel.__name__)
    return name, _ENVIRONMENT.sub("", ptx).replace(entry[1], name)


def _linked(ptx: str, cc: ComputeCapability) -> tuple[bytes, str]:
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}", ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    try:
        cubin = linker.link("cubin").code
    except Exception as error:
        raise RuntimeError(f"{error}\n{linker.get_error_log()}") from error
    return bytes(cubin), linker.get_info_log()


def resources(log: str, ptx: str) -> Resources:
    """Parse the resources of a kernel from the log of `ptxas -v` and from its PTX."""

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))

    return Resources(
        registers=number(r"Used (\d+) registers"),
        stack=number(r"(\d+) bytes stack frame"),
        spilled=number(r"(\d+) bytes spill"),
        shared=sum(map(int, _SHARED.findall(ptx))),  # ptxas allocates externally visible arrays only when linking
        doubles=sum(1 for line in ptx.splitlines() if _DOUBLE.search(line) and ".reg" not in line),
        divisions=len(_DIVISION.findall(ptx)),
    )


def _numba_type(name: str) -> Any:
    from numba import types

    plain = name.rstrip("*")
    type_ = getattr(types, plain)
    for _ in name[len(plain) :]:
        type_ = types.CPointer(type_)
    return type_


@cache
def compilers() -> str:
    """Describe the compilers in use: packages by version, NVIDIA's libraries by file."""
    packages = [f"{name} {_version(name)}" for name in _PACKAGES]
    return ", ".join([*packages, *(f"{name} {_identity(library_path(name))}" for name in _LIBRARIES)])


def _version(package: str) -> str:
    try:
        return str(import_module(package).__version__)
    except ImportError:
        return "none"


def library_path(name: str) -> str | None:
    """Return the file of an NVIDIA library that numba or cuda.core loads to compile; None if there is none."""
    try:
        if name == "nvJitLink":
            return str(import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)
        libraries = import_module("numba.cuda.cudadrv.libs")
        return str(libraries.get_libdevice() if name == "libdevice" else libraries.get_cudalib(name))
    except Exception:  # the search raises errors of its own types
        return None


def _identity(path: str | None) -> str:
    """Return a file's size and modification time, since library versions are too coarse."""
    try:
        found = None if path is None else Path(path).stat()
    except OSError:
        found = None
    return "none" if found is None else f"{found.st_size} {found.st_mtime_ns}"


def _packed(compiled: CompiledKernel) -> bytes:
    """Return a header line with the metadata, followed by the cubin."""
    return json.dumps([compiled.name, *compiled.resources]).encode() + b"\n" + compiled.cubin


def _unpacked(kept: bytes) -> CompiledKernel:
    line, _, cubin = kept.partition(b"\n")
    name, *numbers = json.loads(line)
    return CompiledKernel(name, cubin, Resources(*numbers))
