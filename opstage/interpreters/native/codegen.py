"""Object code of functions, by numba and LLVM, of which nothing stays in this process.

What numba compiles for use in a process it keeps while that lives: each module stays in its execution engine, and
what LLVM's passes make stays in LLVM's one global context, 0.8 MB a kernel. So numba only writes the module here. It is
optimised, by the passes that numba would take, in a context of its own, which goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

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


def object_code(function: Callable[..., Any], entry: str) -> bytes:
    """Object code of `function(lo, hi, worker, arguments)`, a kernel, under the name `entry`."""
    library, native = _written(function)
    llvm = llvm_binding()
    context = llvm.create_context()
    module = llvm.parse_assembly(library.get_llvm_str(), context=context)
    _optimise(module, library)
    text = _ENTRY_POINT.format(triple=module.triple, entry=entry, native=native)
    module.link_in(llvm.parse_assembly(text, context=context))
    for function_ in module.functions:
        if not function_.is_declaration and function_.name != entry:
            function_.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    _run((passes, llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options())), module)
    code: bytes = target_machine().emit_object(module)
    return code


def _written(function: Callable[..., Any]) -> tuple[Any, str]:
    """numba's library of a kernel and all that it calls, not optimised; the kernel's name in it."""
    compiler, types = import_module("numba.core.compiler"), import_module("numba").types
    typing, target = _target()
    flags = compiler.Flags()
    flags.error_model = "numpy"
    flags.nrt = True
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    arguments = (types.intp, types.intp, types.intp, types.uintp)
    with import_module("numba.core.compiler_lock").global_compiler_lock:
        typing.refresh()
        target.refresh()
        compiled = compiler.compile_extra(typing, target, function, arguments, types.void, flags, {})
        compiled.library.finalize()  # what it calls is linked
    return compiled.library, compiled.fndesc.mangled_name


@cache
def _target() -> tuple[Any, Any]:
    """numba's contexts for types and for code on the CPU, of which the second hands nothing to an engine."""
    codegen = import_module("numba.core.codegen")
    cpu = import_module("numba.core.registry").cpu_target

    class Library(codegen.JITCodeLibrary):  # type: ignore[name-defined, misc]
        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_specific(self) -> None:
            pass

    class Codegen(codegen.JITCPUCodegen):  # type: ignore[name-defined, misc]
        _library_class = Library

        def _add_module(self, module: Any) -> None:
            pass

    cpu.target_context.refresh()
    return cpu.typing_context, cpu.target_context.subtarget(_internal_codegen=Codegen("opstage"))


def _optimise(module: Any, library: Any) -> None:
    """As numba optimises a library: functions by themselves; inlining, and what is cheap; then everything."""
    codegen = library.codegen
    module.data_layout = codegen._data_layout
    for function in module.functions:
        _run(codegen._function_pass_manager(), function)
    cheap = {"loop_vectorize": codegen._loopvect, "slp_vectorize": False, "opt": codegen._opt_level, "cost": "cheap"}
    _run(codegen._module_pass_manager(**cheap), module)
    _run(codegen._module_pass_manager(), module)


def _run(made: tuple[Any, Any], ir: Any) -> None:
    """Run passes that were made with a builder, and dispose of them.

    llvmlite does not: their `_dispose` is the empty one of the first of their two base classes.
    """
    passes, builder = made
    passes.run(ir, builder)
    managers = import_module("llvmlite.binding.newpassmanagers")
    managers.NewPassManager._dispose(passes)
    passes.detach()


@cache
def llvm_binding() -> Any:
    """llvmlite, ready to make code for this machine."""
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def target_machine() -> Any:
    """This machine, with all its features."""
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
    """Absolute addresses on x86: code, constants and the C library may lie further apart than 2 GB."""
    triple: str = llvm_binding().get_process_triple()
    return "static" if triple.startswith(("x86", "i386", "i686", "amd64")) else "default"
