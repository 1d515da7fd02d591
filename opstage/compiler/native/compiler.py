"""Compile functions to kernels: compiled once, cached on disk as object code, loaded without LLVM.

A cache entry is named by the digest of everything it depends on: the function's source and the `environment`, which
covers the sources of functions that it may call, versions, the processor and settings.

A process that finds every kernel on disk does not import LLVM, which takes 40 MB: a small linker loads object files of
the format ELF for x86-64 (System V ABI, AMD64 supplement, chapter 4), in which every reference is an address of 64
bits (R_X86_64_64), to itself or to a function of the C library. It copies the sections, writes the addresses, and makes
the memory executable. LLVM loads other formats."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, final
from weakref import WeakValueDictionary, finalize

import numpy as np

from . import access
from .kernel_cache import cache_folder, compiling, environment, read_code, write_code

# Kernels --------------------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_ENTRY = "opstage_kernel"


@final
class Kernel:
    """Machine code: the address of `void f(int64 lo, int64 hi, int64 worker, uint64 arguments)`.

    Code that only has the address must keep the kernel alive, since its memory may be freed with it.
    """

    __slots__ = ("name", "address", "__weakref__")

    def __init__(self, name: str, address: int):
        self.name = name
        self.address = address


_RECENT = 1024

_kernels: dict[str, Kernel] = {}  # for the lifetime of the process
_passing: WeakValueDictionary[str, Kernel] = WeakValueDictionary()  # while referenced
_recent: deque[Kernel] = deque(maxlen=_RECENT)  # of these the last 16 MB or so, to avoid reloading
_engines: dict[int, Any] = {}  # they own code loaded by LLVM, by address


def compile_kernel(name: str, content: str, function: Callable[[], Any], *, passing: bool = False) -> Kernel:
    """Return the kernel of the Python function that `function()` returns; `content` is text that determines its
    behaviour.

    It is compiled if neither this process nor the disk has a kernel of that content. Its code stays in memory until the
    process ends or, if `passing`, while the kernel is referenced or among the last loaded.
    """
    key = _key(content)
    kernel = _loaded(key)
    if kernel is None:
        with compiling:
            kernel = _loaded(key)
            if kernel is None:
                entry, path = f"{_ENTRY}_{key[:16]}", _path(key)
                code = None if path is None else read_code(path, key)
                if code is None:
                    _log.debug("compiling kernel %s", name)
                    code = object_code(function(), entry)
                    if path is not None:
                        write_code(path, key, code)
                kernel = Kernel(name, _load(code, entry))
                if passing:
                    finalize(kernel, _unload, kernel.address).atexit = False
                    _passing[key] = kernel
                    _recent.append(kernel)
    if not passing:
        _kernels[key] = kernel
    return kernel


def _loaded(key: str) -> Kernel | None:
    return _kernels.get(key) or _passing.get(key)


def import_numba() -> Any:
    """Import all of numba, in a thread that receives no signals: after an interrupted import, no second one would
    succeed.

    So another thread does it, to which no signal is delivered.
    """
    if "numba" not in sys.modules:
        with compiling:  # a fork waits for it, since a child could not complete its parent's import
            thread = threading.Thread(target=_try_numba, name="import numba")
            thread.start()
            thread.join()
    return import_module("numba")


def _try_numba() -> None:
    with suppress(Exception):  # the caller imports it again and sees the error
        import_module("numba")


def is_known(content: str) -> bool:
    """Whether this process or the disk has, or recently had, a kernel of that content."""
    key = _key(content)
    path = _path(key)
    return _loaded(key) is not None or (path is not None and path.exists())


def _key(content: str) -> str:
    return hashlib.sha256(f"{environment()}\0{content}".encode()).hexdigest()


def _path(key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"{key[:32]}.o"


def _load(code: bytes, entry: str) -> int:
    try:
        return load_object(code, entry)
    except CannotLoad as error:  # on another system or processor
        _log.debug("LLVM loads %s: %s", entry, error)
        return _load_by_llvm(code, entry)


def _load_by_llvm(code: bytes, entry: str) -> int:
    llvm = llvm_binding()
    # an engine owns its target machine
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        reloc=relocation(), codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = int(engine.get_function_address(entry))
    _engines[address] = engine
    return address


def _unload(address: int) -> None:
    """Free the memory of code that no thread runs any more."""
    if _engines.pop(address, None) is None:
        unload_object(address)


# Object code ----------------------------------------------------------------------------------------------------------

# Each kernel is optimised in its own context, which is freed with it: in a shared context, LLVM's passes would leave
# 0.8 MB per kernel.


def object_code(function: Any, entry: str) -> bytes:
    """Return the object code, with symbol `entry`, of a kernel `(lo, hi, worker, arguments)`, a function or its
    `FunctionSource`."""
    from . import frontend

    source = function if isinstance(function, frontend.FunctionSource) else frontend.source_of(function)
    llvm, machine = llvm_binding(), target_machine()
    module = llvm.parse_assembly(frontend.lowered(source, entry), context=llvm.create_context())
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    _run(builder.getModulePassManager(), builder, module)
    code: bytes = machine.emit_object(module)
    return code


def _run(passes: Any, builder: Any, module: Any) -> None:
    """Run the passes of a builder, and dispose of them.

    llvmlite does not dispose of them: they inherit an empty `_dispose` from the first of two base classes.
    """
    passes.run(module, builder)
    managers = import_module("llvmlite.binding.newpassmanagers")
    managers.NewPassManager._dispose(passes)
    passes.detach()


@cache
def llvm_binding() -> Any:
    """Return llvmlite, initialised to generate code for this machine."""
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def target_machine() -> Any:
    """Return the target machine: this processor with all its features."""
    llvm = llvm_binding()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc=relocation(),
        codemodel="jitdefault",
        jit=True,
    )


def relocation() -> str:
    """Return the relocation model. On x86 addresses are absolute: code, constants and the C library may be over 2 GB
    apart."""
    triple: str = llvm_binding().get_process_triple()
    return "static" if triple.startswith(("x86", "i386", "i686", "amd64")) else "default"


# The linker -----------------------------------------------------------------------------------------------------------

ADDRESS, RELATIVE = 1, 24  # R_X86_64_64, R_X86_64_PC64
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_COMMON_LARGE = 0xFF02
_TABLE, _ADDENDS, _EMPTY, _UNWIND = 2, 4, 8, 0x70000001  # section types: SHT_SYMTAB, SHT_RELA, SHT_NOBITS, …
_ALLOCATED = 2
_X86_64, _RELOCATABLE = 62, 1


class CannotLoad(Exception):
    """The object code uses a feature that is not supported here; LLVM may support it."""


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


_mappings: dict[int, tuple[int, int]] = {}  # maps a function's address to the address and size of its memory


def load_object(code: bytes, entry: str) -> int:
    """Load an object file until `unload_object`; return the address of its function `entry`. Raises CannotLoad."""
    try:
        sections = list(_sections(code))
        return _placed(code, sections, _symbols(code, sections), entry)
    except (struct.error, IndexError, ValueError, OSError, MemoryError) as error:  # truncated, or no executable memory
        raise CannotLoad(str(error)) from error


def _placed(code: bytes, sections: list[_Section], symbols: list[_Symbol], entry: str) -> int:
    places: dict[int, int] = {}  # of copied sections
    commons: dict[int, int] = {}  # of symbols with an address of their own
    end = 0
    for i, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind != _UNWIND:  # kernels raise nothing, so no unwinding
            places[i] = end = _aligned(end, section.alignment)
            end += section.size
    for i, symbol in enumerate(symbols):
        if symbol.section in (_COMMON, _COMMON_LARGE):  # there, `value` is an alignment
            commons[i] = end = _aligned(end, symbol.value)
            end += symbol.size
    base = map_memory(max(end, 1))
    try:
        address = _linked(code, sections, symbols, entry, places, commons, base, end)
        _make_executable(base, max(end, 1))
    except BaseException:
        _unmap(base, max(end, 1))
        raise
    _mappings[address] = base, max(end, 1)
    return address


def unload_object(address: int) -> None:
    """Free the memory of a loaded function that no thread runs any more."""
    _unmap(*_mappings.pop(address))


def _linked(
    code: bytes,
    sections: list[_Section],
    symbols: list[_Symbol],
    entry: str,
    places: dict[int, int],
    commons: dict[int, int],
    base: int,
    end: int,
) -> int:
    """Copy the sections to `base` … `end` and relocate them; return the address of the function."""
    memory = memoryview((ctypes.c_ubyte * end).from_address(base)).cast("B")
    for i, place in places.items():
        section = sections[i]
        if section.kind != _EMPTY:
            memory[place : place + section.size] = code[section.offset : section.offset + section.size]

    def address(number: int) -> int:
        symbol = symbols[number]
        if number in commons:
            return base + commons[number]
        if symbol.section == _UNDEFINED:
            return library_function(symbol.name)
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section not in places:
            raise CannotLoad(f"{symbol.name or 'a symbol'} is in a section that is not loaded")
        return base + places[symbol.section] + symbol.value

    for section in sections:
        if section.kind == _ADDENDS and section.info in places:
            for at in range(section.offset, section.offset + section.size, 24):
                offset, what, addend = struct.unpack_from("<QQq", code, at)
                kind, to = what & 0xFFFFFFFF, places[section.info] + offset
                if kind not in (ADDRESS, RELATIVE):
                    raise CannotLoad(f"a relocation of kind {kind} is not supported")
                value = address(what >> 32) + addend - (base + to if kind == RELATIVE else 0)
                struct.pack_into("<Q", memory, to, value % (1 << 64))
    found = [address(i) for i, symbol in enumerate(symbols) if symbol.name == entry and symbol.section != _UNDEFINED]
    if not found:
        raise CannotLoad(f"the object code lacks the function {entry}")
    return found[0]


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // max(1, alignment)) * max(1, alignment)


def _sections(code: bytes) -> Iterator[_Section]:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
        raise CannotLoad("expected an object file in the format ELF for x86-64")
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    for i in range(count):
        yield _Section(*struct.unpack_from("<4xIQ8xQQIIQ8x", code, at + i * size))


def _symbols(code: bytes, sections: list[_Section]) -> list[_Symbol]:
    (table,) = (section for section in sections if section.kind == _TABLE)
    names = sections[table.link].offset
    symbols = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, section, value, size = struct.unpack_from("<I2xHQQ", code, at)
        start = names + name
        symbols.append(_Symbol(code[start : code.index(b"\0", start)].decode(), section, value, size))
    return symbols


@cache
def library_function(name: str) -> int:
    """Return the address of a function of the C library or its math library. Raises CannotLoad."""
    for library in _libraries():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise CannotLoad(f"{name} is neither in the C library nor in its math library")


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found = [ctypes.CDLL(None)]
    try:
        found.append(ctypes.CDLL("libm.so.6"))
    except OSError:  # another C library, with both in one
        pass
    return tuple(found)


def map_memory(nbytes: int) -> int:
    """Return the address of zeroed memory. Raises MemoryError."""
    allocate = ctypes.CDLL(None, use_errno=True).mmap
    allocate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    allocate.restype = ctypes.c_void_p
    readable = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = allocate(None, nbytes, readable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise MemoryError(f"cannot map {nbytes} bytes of memory: error {ctypes.get_errno()}")
    return address


def _unmap(base: int, nbytes: int) -> None:
    release = ctypes.CDLL(None).munmap
    release.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    release(base, nbytes)


def _make_executable(base: int, nbytes: int) -> None:
    """Make the memory executable and read-only."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, nbytes, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise CannotLoad(f"cannot make memory executable: error {ctypes.get_errno()}")


# Ufuncs ---------------------------------------------------------------------------------------------------------------

# A ufunc loop has the arguments of a kernel: pointers, the count, the strides, and unused data.
_TEXT = """def kernel(pointers, counts, strides, data):
    a, n, s = int64s(pointers, {count}), int64s(counts, 1)[0], int64s(strides, {count})
    {starts}
{packed}    else:
        for j in range(n):
            store(a[{last}] + j * s[{last}], 0, formula({strided}))
"""

# Operands of stride 0, such as a constant, are read once, so that the loop has vector instructions.
_PACKED = """    {word} {condition}:
        {numbers}
        for j in range(n):
            store(y, j, formula({loads}))
"""

_kept: list[Any] = []  # keeps alive what the ufuncs point to


def ufunc(name: str, content: str, formula: Any, dtypes: Sequence[str], result: str) -> Any:
    """Return the ufunc of a scalar formula, determined by `content`, of operands of some dtypes; it broadcasts and
    accepts any strides. Masks come to the formula as numbers, 0 or 1."""
    operands, every = len(dtypes), (*dtypes, result)
    names = [f"x{i}" for i in range(operands)]
    text = _TEXT.format(
        count=operands + 1,
        starts=", ".join(names) + ", y = " + ", ".join(f"a[{i}]" for i in range(operands + 1)),
        packed="".join(
            _packed(every, alone, "elif" if n else "if")
            for n, alone in enumerate(product((False, True), repeat=operands))
        ),
        strided=", ".join(f"load_{dtype}(a[{i}] + j * s[{i}], 0)" for i, dtype in enumerate(dtypes)),
        last=operands,
    )

    def source() -> Any:
        from . import frontend
        from .intrinsics import int64s

        loads = {f"load_{dtype}": access.load(dtype) for dtype in dtypes}
        store = access.store(result, access.written(0))
        return frontend.source_of_text(text, {"int64s": int64s, "formula": formula, "store": store, **loads})

    kernel = compile_kernel(name, f"{text}{content}{every}", source)
    loops = (ctypes.c_void_p * 1)(kernel.address)
    data = (ctypes.c_void_p * 1)(None)
    types = (ctypes.c_byte * (operands + 1))(*[int(np.dtype(dtype).num) for dtype in every])
    label = ctypes.c_char_p(name.encode())
    _kept.append((kernel, loops, data, types, label))
    return _from_loops()(loops, data, types, 1, operands, 1, -1, label, None, 0)


def _packed(dtypes: Sequence[str], alone: Sequence[bool], word: str) -> str:
    """Return the text of the loop for packed arrays, of which some operands are one number."""
    flags = [*alone, False]
    strides = [0 if flag else np.dtype(dtype).itemsize for flag, dtype in zip(flags, dtypes)]
    numbers = [f"c{i} = load_{dtypes[i]}(x{i}, 0)" for i, flag in enumerate(flags) if flag]
    loads = [f"c{i}" if flag else f"load_{dtypes[i]}(x{i}, j)" for i, flag in enumerate(flags[:-1])]
    return _PACKED.format(
        word=word,
        condition=" and ".join(f"s[{i}] == {stride}" for i, stride in enumerate(strides)),
        numbers="; ".join(numbers) or "pass",
        loads=", ".join(loads),
    )


def _from_loops() -> Any:
    """Return PyUFunc_FromFuncAndData, the second entry of NumPy's table of C functions for ufuncs (NumPy's C API)."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    table = (ctypes.c_size_t * 2).from_address(pointer(np._core._multiarray_umath._UFUNC_API, None))  # type: ignore[attr-defined]
    integers = [ctypes.c_int] * 4
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, *[ctypes.c_void_p] * 3, *integers, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int
    )
    return prototype(table[1])
