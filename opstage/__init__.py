"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import data, debug, init, models, optim
    from .api import check, hvp, jvp, run, trim, value_and_grad, vjp
    from .compilation import CompiledOut, CompiledScalar, compile, record
    from .init import Declaration
    from .interpreters.registry import register_interpreter
    from .jacobians import hessian, jacobian, per_sample_gradients
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
    from .training.fit import lr_range_test
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
    "run",
    "scalar_trainer",
    "shapes",
    "transform",
    "trim",
    "value_and_grad",
    "vjp",
]

# A name is imported when it is first used: so `opstage` heeds Ctrl-C before NumPy is there, and --help needs no model.
_HOMES = {
    ".api": "check hvp jvp run trim value_and_grad vjp",
    ".verification": "bounds",
    ".compilation": "CompiledOut CompiledScalar compile record",
    ".runs.fit": "fit",
    ".runs.plan": "plan",
    ".runs.trained_model": "load",
    ".init": "Declaration",
    ".transforms.custom_ops": "custom_op custom_vjp",
    ".interpreters.registry": "register_interpreter",
    ".ops.host_arrays": "register_wire_format",
    ".jacobians": "hessian jacobian per_sample_gradients",
    ".models": "Model Recipe",
    ".ops.transform": "Box",
    ".ops.errors": "DeviceError DtypeError MeshError OpstageError OutOfMemoryError ProgramError ProgramWarning "
    "RangeError RankError ShapeError UnsupportedError UsageError ValidationError",
    ".ops.protocol": "Aux Ops Ref",
    ".ops.spec": "Spec shapes",
    ".options": "Options",
    ".training.accumulate": "Accumulate",
    ".training.fit": "lr_range_test",
    ".training.finite": "NotFiniteError",
    ".training.module": "ScalarModule ScalarModuleDef",
    ".training.param": "Param",
    ".training.session": "Session",
    ".training.trainer": "ScalarTrainer scalar_trainer",
    ".training.validate": "check_step",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """A name of `__all__`, or a module of the package, as it is first used."""
        from importlib import import_module

        import_module(".forks", __name__)  # first: from then on a fork waits for imports in other threads
        home = next((module for module, names in _HOMES.items() if name in names.split()), None)
        if home is not None:
            found = getattr(import_module(home, __name__), name)
        else:
            module = f".{name}"
            try:
                found = import_module(module, __name__)
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}{module}":
                    raise
                from .ops.hints import of_a_module

                hint = of_a_module(__name__, name, __all__)
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name) from None
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
