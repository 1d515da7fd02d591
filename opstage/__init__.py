"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from . import data, debug, init, models, optim
    from .api import (
        check,
        empty_cache,
        hessian,
        hvp,
        jacobian,
        jvp,
        per_sample_gradients,
        remat,
        run,
        value_and_grad,
        vjp,
        vmap,
    )
    from .compilation import CompiledOut, CompiledScalar, compile, record
    from .init import Declaration
    from .interpreters.registry import register_interpreter
    from .models import Model, Recipe
    from .ops import derived, transform
    from .ops.errors import (
        DeviceError,
        DtypeError,
        MeshError,
        OpstageError,
        OutOfMemoryError,
        ProgramError,
        ProgramWarning,
        RangeError,
        RankError,
        ShapeError,
        UnsupportedError,
        UsageError,
        ValidationError,
    )
    from .ops.host_arrays import register_wire_format
    from .ops.protocol import Aux, Ops, Ref
    from .ops.spec import Spec, shapes
    from .ops.transform import Box
    from .options import Options
    from .runs.fit import fit
    from .runs.plan import plan
    from .runs.trained_model import load
    from .training import callbacks
    from .training.accumulate import Accumulate
    from .training.finite import NotFiniteError
    from .training.lr_range import lr_range_test
    from .training.module import ScalarModule, ScalarModuleDef
    from .training.param import Param
    from .training.session import Session
    from .training.trainer import ScalarTrainer, scalar_trainer
    from .training.validate import check_step
    from .transforms.custom_ops import custom_op, custom_vjp
    from .verification import bounds

__all__ = [
    "Accumulate",
    "Aux",
    "Box",
    "CompiledOut",
    "CompiledScalar",
    "Declaration",
    "DeviceError",
    "DtypeError",
    "MeshError",
    "Model",
    "NotFiniteError",
    "Ops",
    "OpstageError",
    "Options",
    "OutOfMemoryError",
    "Param",
    "ProgramError",
    "ProgramWarning",
    "RangeError",
    "RankError",
    "Recipe",
    "Ref",
    "ScalarModule",
    "ScalarModuleDef",
    "ScalarTrainer",
    "Session",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "bounds",
    "callbacks",
    "check",
    "check_step",
    "compile",
    "custom_op",
    "custom_vjp",
    "data",
    "debug",
    "derived",
    "empty_cache",
    "fit",
    "hessian",
    "hvp",
    "init",
    "jacobian",
    "jvp",
    "load",
    "lr_range_test",
    "models",
    "optim",
    "per_sample_gradients",
    "plan",
    "record",
    "register_interpreter",
    "register_wire_format",
    "remat",
    "run",
    "scalar_trainer",
    "shapes",
    "transform",
    "value_and_grad",
    "vjp",
    "vmap",
]

# A name is imported when it is first used: so `opstage` heeds Ctrl-C before NumPy is there, and --help needs no model.
_HOMES = {
    ".api": "check empty_cache hessian hvp jacobian jvp per_sample_gradients remat run trim value_and_grad vjp vmap",
    ".verification": "bounds",
    ".compilation": "CompiledOut CompiledScalar compile record",
    ".runs.fit": "fit",
    ".runs.plan": "plan",
    ".runs.trained_model": "load",
    ".init": "Declaration",
    ".transforms.custom_ops": "custom_op custom_vjp",
    ".interpreters.registry": "register_interpreter",
    ".ops.host_arrays": "register_wire_format",
    ".models": "Model Recipe",
    ".ops.transform": "Box",
    ".ops.errors": "DeviceError DtypeError MeshError OpstageError OutOfMemoryError ProgramError ProgramWarning "
    "RangeError RankError ShapeError UnsupportedError UsageError ValidationError",
    ".ops.protocol": "Aux Ops Ref",
    ".ops.spec": "Spec shapes",
    ".options": "Options",
    ".training.accumulate": "Accumulate",
    ".training.lr_range": "lr_range_test",
    ".training.finite": "NotFiniteError",
    ".training.module": "ScalarModule ScalarModuleDef",
    ".training.param": "Param",
    ".training.session": "Session",
    ".training.trainer": "ScalarTrainer scalar_trainer",
    ".training.validate": "check_step",
}


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports each name from its module when it is first used.

    homes   the names of each module, separated by spaces: {".run": "RunOutcome train"}

    So one module of a package can be imported without the others.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def named(name: str) -> Any:
        import sys
        from importlib import import_module

        import_module(".threads", __name__)  # first: from then on a fork waits for imports in other threads
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home_of[name], package), name)
        vars(sys.modules[package])[name] = found
        return found

    return named


if not TYPE_CHECKING:
    _named = lazily(__name__, _HOMES)

    def __getattr__(name):
        """A name of `__all__`, or a module of the package, as it is first used."""
        from importlib import import_module

        if any(name in names.split() for names in _HOMES.values()):
            return _named(name)
        import_module(".threads", __name__)
        module = f".{name}"
        try:
            return import_module(module, __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}{module}":
                raise
            from .ops.hints import of_a_module

            hint = of_a_module(__name__, name, __all__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name) from None

    def __dir__():
        return [*__all__, "__version__", "facts", "interpreters", "onnx", "ops", "testing", "torch", "training"]
