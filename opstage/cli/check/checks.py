"""Check a model, shipped or in a user's file, or the functions of a user's file that declare their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ...api import check
from ...config import Layer
from ...data.array_files import ArrayHeader
from ...interpreters.registry import make_interpreter
from ...interpreters.shape_check.finding import Finding
from ...interpreters.shape_check.formats.document import CheckOutcome, Section, Unusable
from ...models import Model
from ...models.model import MAKE, list_models
from ...ops.errors import OpstageError, UsageError
from ...ops.mesh import parse_mesh
from ...ops.spec import Shapes, Spec, as_specs, declared, read_claims, read_inputs
from ...ops.trees import flatten, unflatten
from ...options import Options
from ...program_arguments import argument_paths
from ...runs.evaluation import check_parts
from ...runs.run_data import load_data
from ...runs.settings import Settings, configure
from ...source_files import Refusal, declaring, find, find_program, load_file, load_module, refusal
from ...training.headers import check_arrays
from ...training.predictor import input_specs
from ...training.program_check import FORWARD, STEP, Checked, check_program, nested
from ...training.validate import check_planned_step
from .request import Asked, Request
from .sections import RECIPE, checked_with, completed, optimizer_called, read_bounds


def check_configured(
    model: str | None, file: Path | None, flags: Sequence[Layer], asked: Asked, below: Sequence[Layer] = ()
) -> CheckOutcome:
    """Return the outcome for a model, by default cnn, configured as by train; all sources override those `below`."""
    return check_shipped(configure(model, file=file, flags=flags, below=below).settings, asked)


def check_shipped(settings: Settings, asked: Asked) -> CheckOutcome:
    """Return the outcome for the model of `settings`. Raises UsageError for flags about a user's program."""
    for flag, value in (
        ("--input", asked.inputs),
        ("--where", asked.where if not parse_mesh(settings.options.mesh).open else ()),
        ("--param", asked.param),
        ("--params", asked.params),
        ("--state", asked.state),
    ):
        if value:
            raise UsageError(f"{flag} is for a program of your own; the model {settings.run.model} has its own shapes")
    options = checked_with(settings.options, asked)
    make_interpreter(options)  # raises if the backend or device is missing, which is not a finding about the model
    chosen = settings.defined.make(settings.model)
    step = (asked.train and chosen.loss is not None) if asked.step is None else asked.step
    if step and not asked.train:
        raise UsageError("a training step is taken in training form; leave --step or --eval out")
    held = [as_specs(tree) for tree in (chosen.init, chosen.state) if tree is not None]
    planned = None
    if step:
        declared = _declaring(chosen.batch, asked.where)  # of a mesh's sizes, of which the model says nothing
        frozen = settings.optimizer.freeze.strip()
        taken: dict[str, Any] = {  # the step that `train` would take
            "optimizer": optimizer_called(asked.optimizer) or settings.optimizer.make(),
            "clip": settings.optimizer.make_clip(),
            "requires_grad": {frozen: False} if frozen else None,
        }
        report, planned = check_planned_step(
            chosen.require_loss(), chosen.init, *declared, options=options, state=chosen.state, **taken
        )
    else:
        report = check(chosen.forward, *held, *chosen.batch, options=options, train=asked.train)
    names = argument_paths(chosen.forward, (*(None for _ in held), *chosen.batch))
    batch = dict(zip(names, flatten(chosen.batch)[0]))
    checked = Checked(report, STEP if step else FORWARD, held[0], held[1] if len(held) == 2 else None, batch, planned)
    found = _data_of_recipe(settings, chosen, batch, asked) if asked.data == RECIPE else ()
    if report.ok:
        checked = replace(checked, report=replace(report, errors=check_parts(chosen, options)))
    if asked.prove and checked.report.ok:
        from ...facts import bounds_of_claims, with_claims

        predicts = chosen.outputs if chosen.outputs is not None else chosen.forward
        inputs = chosen.batch if chosen.outputs is None else tuple(input_specs(chosen).values())
        predicted = check(predicts, *held, *inputs, options=options, train=False)
        bounds = bounds_of_claims(read_bounds(asked.bounds), predicted, checked.report if asked.ranges else None)
        claimed = with_claims(predicted, read_claims(asked.prove), bounds, asked.range_dtype)
        checked = replace(checked, report=checked.report.with_verdicts(claimed))
    report, sections = completed(checked, settings.options, asked, found)
    if settings.parts > 1:
        sections = [_of_whole_batches(each, settings.parts) for each in sections]
    return CheckOutcome.of(report, settings.run.model, checked.what, sections)


def _of_whole_batches(section: Section, parts: int) -> Section:
    """Return the memory section with the note that it does not predict steps in parts."""
    if section.name != "memory":
        return section
    note = (
        f"  These are steps of whole batches. In {parts} parts (accumulate) a step keeps the batch and a sum of\n"
        "  each gradient, and takes for the rest what the rows of a part take: --at with their number."
    )
    data = [{**entry, "of": "whole batches"} for entry in section.data]
    return replace(section, data=data, text=f"{section.text}\n{note}")


def _declaring(batch: tuple[Any, ...], where: Sequence[str]) -> tuple[Any, ...]:
    """Return the Specs of a batch with these constraints added to the first."""
    if not where:
        return batch
    leaves, structure = flatten(batch)
    first = leaves[0]
    made = first.changed(where=(*first.where, *where))
    declared: tuple[Any, ...] = unflatten(structure, [made, *leaves[1:]])
    return declared


def _data_of_recipe(settings: Settings, model: Model, batch: Mapping[str, Spec], asked: Asked) -> tuple[Finding, ...]:
    """Return findings if the model's own data do not fit its declared batches."""
    training = load_data(settings, model, settings.defined.recipe).training
    arrays = {name: ArrayHeader(array.shape, array.dtype) for name, array in zip(training.names, training.arrays)}
    size = asked.batch_size if asked.batch_size is not None else settings.data.batch_size
    return check_arrays(arrays, batch, f"the data of {model.name}'s recipe", size)


# The functions and models of a user's file, in the process that `processes.py` starts for it --------------------------


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
            programs, models = declaring(module), list_models(module)
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
    flag = next((path for path in request.asked.settings if not path.startswith("options.")), None)
    if flag is not None:
        yield CheckOutcome(
            request.label, unusable=Unusable(f"--{flag} is a setting of models, of which the file has none")
        )
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
    from ...runs.model_files import define_module
    from ...runs.settings import configure

    asked = request.asked
    flags = Layer(asked.settings, {path: f"--{path}" for path in asked.settings}, text=True)
    options = Layer.of({f"options.{name}": value for name, value in asked.options.items()}, "the command line")
    try:
        defined = define_module(word, Path(module.__file__ or word), module)
        configuration = configure(word, file=asked.config, flags=[options, flags], defined=defined)
        return check_shipped(configuration.settings, asked)
    except Refusal as error:
        return CheckOutcome(word, unusable=Unusable(error.reason, error.source))
    except OpstageError as error:
        return CheckOutcome(word, unusable=Unusable(str(error).removeprefix(f"{word}: ")))


def _check(label: str, program: Callable[..., Any], module: ModuleType, request: Request) -> CheckOutcome:
    asked = request.asked
    chosen = Options(**asked.options)
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
