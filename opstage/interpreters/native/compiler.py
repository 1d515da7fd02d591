"""Compile functions to kernels: compiled once, cached on disk as object code, loaded without LLVM.

A cache entry is named by the digest of everything it depends on: the function's source and the `environment`, which
covers the sources of functions that it may call, versions, the processor and settings.

A process that finds every kernel on disk does not import LLVM, which takes 40 MB.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, final
from weakref import WeakValueDictionary, finalize

from . import objects
from .codegen import llvm_binding, object_code, relocation
from .environment import environment
from .folder import cache_folder, compiling
from .kept import read_kept, write_kept

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
                entry = f"{_ENTRY}_{key[:16]}"
                code = _read(key)
                if code is None:
                    _log.debug("compiling kernel %s", name)
                    code = object_code(function(), entry)
                    _write(key, code)
                kernel = Kernel(name, _load(code, entry))
                if passing:
                    finalize(kernel, _unload, kernel.address).atexit = False
                    _passing[key] = kernel
                    _recent.append(kernel)
    if not passing:
        _kernels[key] = kernel
    return kernel


def _loaded(key: str) -> Kernel | None:
    kernel = _kernels.get(key)
    return kernel if kernel is not None else _passing.get(key)


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


def _load(code: bytes, entry: str) -> int:
    try:
        return objects.load(code, entry)
    except objects.CannotLoad as error:  # on another system or processor
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
        objects.unload(address)


# On disk -------------------------------------------------------------------------------------------------------------


def _path(key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"{key[:32]}.o"


def _read(key: str) -> bytes | None:
    path = _path(key)
    return None if path is None else read_kept(path, key)


def _write(key: str, code: bytes) -> None:
    path = _path(key)
    if path is not None:
        write_kept(path, key, code)
