"""Check the functions of a user's file, in the process that `process.py` starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ...config import Layer
from ...interpreters.registry import make_interpreter
from ...interpreters.shape_check.formats import CheckOutcome, Unusable
from ...loading import Refusal, declaring, find, find_program, load_file, load_module, refusal
from ...models.model import MAKE, Model, models_in
from ...ops.errors import OpstageError, UsageError
from ...ops.spec import Shapes, declared, read_claims, read_inputs
from ...options import Options
from ...training.program_check import check_program, nested
from .memory import checked_with
from .request import Request
from .sections import RECIPE, completed, optimizer_called, read_bounds


def check_user(request: Request) -> Iterator[CheckOutcome]:
    """Yield an outcome for each requested function."""
    try:
        module = load_file(Path(request.file)) if request.file is not None else load_module(request.module or "")
        if request.function is not None:
            found = find(module, request.function)
            if isinstance(found, Model) or (request.function == MAKE and declared(found) is None):
                yield _check_model(request.label, module, request)
                return
            programs = {request.function: find_program(module, request.function)}
        else:
            programs, models = declaring(module), models_in(module)
            for name in models:
                yield _check_model(request.label if len(models) == 1 else f"{request.label}:{name}", module, request)
            if models and not programs:
                return
            if not programs:
                raise Refusal(
                    "no function declares its shapes; name one and its inputs "
                    f"(opstage check {request.label}:loss --input 'x: B 64'), or decorate it with @opstage.shapes(…)"
                )
    except Refusal as error:
        yield CheckOutcome(request.label, unusable=Unusable(error.reason, error.source))
        return
    if request.asked.settings:
        flag = next(iter(request.asked.settings))
        yield CheckOutcome(request.label, unusable=Unusable(f"--{flag} is a setting of models, and it has none"))
        return
    for name, program in programs.items():
        label = request.label if request.function is not None else f"{request.label}:{name}"
        try:
            yield _check(label, program, module, request)
        except Refusal as error:
            yield CheckOutcome(label, unusable=Unusable(error.reason, error.source))
        except OpstageError as error:
            yield CheckOutcome(label, unusable=Unusable(str(error)))
        except BaseException as error:
            found = refusal(error, f"{name} could not be checked", _path(request))
            yield CheckOutcome(label, unusable=Unusable(found.reason, found.source))


def _check_model(word: str, module: ModuleType, request: Request) -> CheckOutcome:
    """Return the outcome for a model in the file, configured by the request's flags."""
    from ...runs.definition import defined_in
    from ...runs.settings import configure
    from .model import check_shipped

    asked = request.asked
    flags = Layer(asked.settings, {path: f"--{path}" for path in asked.settings}, text=True)
    options = Layer.of({f"options.{name}": value for name, value in asked.options.items()}, "the command line")
    try:
        defined = defined_in(word, Path(module.__file__ or word), module)
        configuration = configure(word, file=asked.config, flags=[options, flags], defined=defined)
        return check_shipped(configuration.settings, asked)
    except Refusal as error:
        return CheckOutcome(word, unusable=Unusable(error.reason, error.source))
    except OpstageError as error:
        return CheckOutcome(word, unusable=Unusable(str(error).removeprefix(f"{word}: ")))


def _check(label: str, program: Callable[..., Any], module: ModuleType, request: Request) -> CheckOutcome:
    asked = request.asked
    chosen = Options.from_env().replace(**asked.options)
    options = checked_with(chosen, asked)
    make_interpreter(options)  # raises if the backend or device is missing, which is not a finding about the program
    checked = check_program(
        program,
        _shapes(program, module, request),
        options=options,
        train=asked.train,
        step=asked.step,
        optimizer=optimizer_called(asked.optimizer),
        bounds=read_bounds(asked.bounds),
        dtype=asked.range_dtype,
        ranges=asked.ranges,
    )
    if request.asked.data == RECIPE and not Path(RECIPE).exists():
        raise UsageError(f"--data {RECIPE} is for shipped models; name a .npz or .csv file")
    report, sections = completed(checked, chosen, asked)
    return CheckOutcome.of(report, label, checked.what, sections)


def _shapes(program: Callable[..., Any], module: ModuleType, request: Request) -> Shapes:
    """Return the shapes given by flags, completed by the function's own declaration."""
    asked, own = request.asked, declared(program) or Shapes({})
    given = read_inputs(asked.inputs)
    inputs = {**own.inputs, **given}
    if asked.where:
        first = next(iter(inputs), None)
        if first is None:
            raise UsageError("--where speaks of no input; give one with --input 'x: B 64'")
        spec, every = inputs[first], dict.fromkeys((*inputs[first].where, *asked.where))
        inputs[first] = spec.changed(where=tuple(every))
    params: Any = own.params
    if asked.params is not None and asked.param:
        raise UsageError("--param and --params both give the parameters; leave one of them out")
    if asked.param:
        params = nested(read_inputs(asked.param), "--param")
    elif asked.params is not None:
        params = _value(asked.params, module, request, "--params")
    state = own.state if asked.state is None else _value(asked.state, module, request, "--state")
    stated = read_claims((*own.claims, *asked.prove))
    return Shapes(inputs, _called(params, request, "params"), _called(state, request, "state"), stated)


def _value(name: str, module: ModuleType, request: Request, flag: str) -> Any:
    """Resolve `init`, `my_model.py:init` or `package.module:init`."""
    place, _, path = name.rpartition(":")
    try:
        if not place:
            return find(module, path)
        if place.endswith(".py"):
            path_ = Path(place)
            same = request.file is not None and path_.absolute() == Path(request.file).absolute()
            return find(module if same else load_file(path_), path)
        return find(load_module(place), path)
    except Refusal as error:
        raise Refusal(f"{flag} {name}: {error.reason}", error.source) from error


def _called(source: Any, request: Request, name: str) -> Any:
    """Return the Specs of parameters or state. An exception in the user's function becomes a Refusal with its line."""
    from ...training.validate import parameter_specs

    if source is None:
        return None
    try:
        return parameter_specs(source, name)
    except OpstageError:
        raise
    except BaseException as error:
        raise refusal(error, f"the function that makes {name} failed", _path(request)) from error


def _path(request: Request) -> Path | None:
    return None if request.file is None else Path(request.file).absolute()
