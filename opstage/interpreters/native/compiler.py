"""Kernels from functions: compiled by numba once, kept on disk as object code, loaded without numba and LLVM.

An entry on disk is named after the digest of all that decides it: the function's source, the sources of what it may
call, the versions of numba, llvmlite and Python, and the processor. Its first bytes are a digest of the rest, so a
damaged one is noticed and made anew; it is written under another name and renamed, so two processes may write it.

A process that finds every kernel on disk imports neither numba nor LLVM, which take 120 MB once they have run.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from . import objects
from .folder import cache_folder, compiled_sources, compiling
from .kept import read_kept, write_kept
from .processor import processor

_log = logging.getLogger(__name__)
_ENTRY = "opstage_kernel"


class Kernel(NamedTuple):
    """Machine code: the address of `void f(int64 lo, int64 hi, int64 worker, uint64 arguments)`."""

    name: str
    address: int


_kernels: dict[str, Kernel] = {}
_engines: list[Any] = []  # they own the code that LLVM has loaded


def compile_kernel(name: str, content: str, function: Callable[[], Any]) -> Kernel:
    """The kernel of the Python function that `function()` gives; `content` is text that decides what it does.

    It is compiled if neither this process nor the disk has a kernel of that content.
    """
    key = _key(content)
    kernel = _kernels.get(key)
    if kernel is None:
        with compiling:
            kernel = _kernels.get(key)
            if kernel is None:
                entry = f"{_ENTRY}_{key[:16]}"
                code = _read(key)
                if code is None:
                    _log.debug("compiling kernel %s", name)
                    import_numba()
                    code = _compile(function(), entry)
                    _write(key, code)
                kernel = _kernels[key] = Kernel(name, _load(code, entry))
    return kernel


def import_numba() -> Any:
    """numba, imported whole: were its import broken off by an interrupt, no second one in this process would succeed.

    So another thread does it, and it is not told of signals.
    """
    if "numba" not in sys.modules:
        thread = threading.Thread(target=_try_numba, name="import numba")
        thread.start()
        thread.join()
    return import_module("numba")


def _try_numba() -> None:
    with suppress(Exception):  # whoever wants it imports it once more, and sees the error
        import_module("numba")


def is_known(content: str) -> bool:
    """Whether this process or the disk has a kernel of that content, or had one a moment ago."""
    key = _key(content)
    path = _path(key)
    return key in _kernels or (path is not None and path.exists())


def _key(content: str) -> str:
    return hashlib.sha256("\0".join((content, *_environment())).encode()).hexdigest()


# In place of numba's, which knows of Python and its exceptions: a kernel raises none.
_ENTRY_POINT = """
target triple = "{triple}"
declare i32 @"{native}"(ptr, ptr, i64, i64, i64, i64)
define void @"{entry}"(i64 %lo, i64 %hi, i64 %worker, i64 %arguments) {{
  %returned = alloca ptr
  %raised = alloca ptr
  %status = call i32 @"{native}"(ptr %returned, ptr %raised, i64 %lo, i64 %hi, i64 %worker, i64 %arguments)
  ret void
}}
"""


@cache
def _environment() -> tuple[str, ...]:
    return compiled_sources(), version("numba"), version("llvmlite"), platform.python_version(), *processor()


def _compile(function: Callable[..., Any], entry: str) -> bytes:
    """Object code in which the kernel has the name `entry`."""
    numba = import_numba()
    llvm = _llvm()
    compiled = numba.cfunc("void(intp, intp, intp, uintp)", error_model="numpy", boundscheck=False)(function)
    module = llvm.parse_assembly(compiled.inspect_llvm())
    native = compiled.native_name.removeprefix("cfunc.")
    module.link_in(llvm.parse_assembly(_ENTRY_POINT.format(triple=module.triple, entry=entry, native=native)))
    for function_ in module.functions:
        if not function_.is_declaration and function_.name != entry:
            function_.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, llvm.create_pass_builder(_target_machine(), llvm.create_pipeline_tuning_options()))
    code: bytes = _target_machine().emit_object(module)
    return code


@cache
def _llvm() -> Any:
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _target_machine() -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc=_relocation(),
        codemodel="jitdefault",
        jit=True,
    )


def _relocation() -> str:
    """Absolute addresses on x86: code, constants and the C library may lie further apart than 2 GB."""
    triple: str = _llvm().get_process_triple()
    return "static" if triple.startswith(("x86", "i386", "i686", "amd64")) else "default"


def _load(code: bytes, entry: str) -> int:
    try:
        return objects.load(code, entry)
    except objects.CannotLoad as error:  # another system or processor
        _log.debug("LLVM loads %s: %s", entry, error)
        return _load_by_llvm(code, entry)


def _load_by_llvm(code: bytes, entry: str) -> int:
    llvm = _llvm()
    # A machine of its own: an engine takes it over.
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        reloc=_relocation(), codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(entry))


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
