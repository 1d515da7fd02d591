"""Generate object code of kernels: from source by the front end, optimised by LLVM.

Each kernel is optimised in its own context, which is freed with it: in a shared context, LLVM's passes would leave 0.8
MB per kernel.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


def object_code(function: Any, entry: str) -> bytes:
    """Return the object code, with symbol `entry`, of a kernel `(lo, hi, worker, arguments)`, a function or its
    `FunctionSource`."""
    frontend = import_module(f"{__package__}.frontend")
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
