"""Models by name or file: `Definition`, a model before it is configured, and copies of its files in a run."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, final, get_type_hints

import numpy as np

from ..config import fields_of
from ..files import require_file
from ..init import Declaration
from ..models import MODELS, Model, Recipe
from ..models.model import MAKE, list_models, shipped_name
from ..ops.errors import OpstageError, UsageError, a_type, brief, nearest
from ..ops.spec import Shapes, declared
from ..ops.trees import flatten, paths
from ..safetensors_files import read_bytes
from ..source_files import (
    Refusal,
    declaring,
    files_of,
    find,
    is_as_written,
    late_import,
    load_file,
    loaded_copy,
    refusal,
    source_root,
)
from .directory import RUN, SOURCE, RunDirectory, run_document
from .evaluation import require_batch


@final
@dataclass(frozen=True, eq=False)
class Definition:
    """A model with a dataclass for its configuration.

    word     its name in a configuration: `mlp`, `my_model.py`, `my_model.py:loss`
    config   the dataclass of its settings
    recipe   how it is trained by default
    file     the user's file; None for a shipped model
    texts    the contents of all user files that define it, its own first, as of their import
    """

    word: str
    config: type
    recipe: Recipe
    file: Path | None
    texts: Mapping[Path, bytes]
    _make: Callable[[Any], Any]

    def make(self, config: Any = None) -> Model:
        """Build the model for a config, by default with all defaults. Raises UsageError."""
        try:
            made = self._make(self.config() if config is None else config)
        except OpstageError:
            raise
        except Exception as error:
            raise _unusable(refusal(error, f"{self.word}: the model cannot be made", self.file)) from error
        if not isinstance(made, Model):
            raise UsageError(f"{self.word}: {MAKE} returned {a_type(made)}; expected an opstage.Model")
        require_batch(made)
        return made

    @property
    def called(self) -> str:
        """Return its name in messages: `mlp`, `my_model`."""
        return self.word if self.file is None else self.file.stem

    def absolute(self) -> str:
        """Return `word` with an absolute path, valid from every directory."""
        if self.file is None:
            return self.word
        return f"{self.file.absolute()}{self.word.removeprefix(named_file(self.word) or '')}"


def definition(word: str, origin: str = "", *, kept: Path | None = None) -> Definition:
    """Return the model named by `word`: a shipped one, or `my_model.py`, `my_model.py:make`, `my_model.py:loss`.

    origin   the source of the name, for errors
    kept     a copy of the file to use instead, next to copies of the files that it imports

    A file has a model if it has `make(config) -> Model`, where `Config`, or the annotation, is a dataclass; or one
    `Model`; or one function with `@opstage.shapes(…)` whose parameters are declared. Raises UsageError, with the user's
    line, for a file that cannot be imported or does not have exactly one model.
    """
    if word in MODELS:
        return define_module(word, None, MODELS[word], {})
    file = named_file(word)
    before = f"{origin}: " if origin else ""
    if word.startswith(IN_PYTHON):
        raise UsageError(
            f"{before}{word.removeprefix(IN_PYTHON)} is a model made in Python, which commands cannot build; in Python "
            "use opstage.load(run, model=…) and opstage.fit(model, …, out=run, resume=True)"
        )
    if file is None:
        beside = f" (did you mean {f'{word}.py'!r}?)" if Path(f"{word}.py").is_file() else ""
        raise UsageError(
            f"{before}unknown model {word!r}{nearest(word, MODELS) or beside}; shipped are {', '.join(sorted(MODELS))}"
            ", and one of your own is named by its file, as in my_model.py"
        )
    path = Path(file) if kept is None else kept
    if path.suffix in IMPORTED:
        return _imported(word, Path(file), path)
    try:
        texts = _texts(path)
        key = (word, *[f"{each} {hashlib.sha256(text).hexdigest()}" for each, text in texts.items()])
        if key not in _LOADED:
            with loaded_copy(path) if kept is not None else nullcontext(load_file(path)) as module:
                _LOADED[key] = define_module(word, Path(file), module, texts)
        return _LOADED[key]
    except Refusal as error:
        raise _unusable(error, f"{before}{word}") from error


def _imported(word: str, file: Path, path: Path) -> Definition:
    """Return the model of an ONNX file, with its weight files, or of a file of torch.export.save."""
    path = path.absolute()
    config: type
    make: Callable[[Any], Model]
    if path.suffix == ONNX:
        from ..interop.onnx.file import read
        from ..interop.onnx.model import Config, configured

        found = read(path)
        texts = {path: found.data, **{each: each.read_bytes() for each in found.beside}}
        config, make = Config, partial(configured, found)
    else:
        from ..interop.torch import model as exported

        require_file(path)
        texts = {path: path.read_bytes()}
        config, make = exported.Config, partial(exported.configured, path)
    key = (word, *[f"{each} {hashlib.sha256(text).hexdigest()}" for each, text in texts.items()])
    if key not in _LOADED:
        _LOADED[key] = Definition(word, config, Recipe(), file, texts, make)
    return _LOADED[key]


ONNX = ".onnx"
IMPORTED = (ONNX, ".pt2")
"""Suffixes of model files of other libraries."""
WEIGHTS = ".safetensors"
"""The suffix of the weights file next to a model file of the same name, as `opstage import` writes it."""

IN_PYTHON = "python:"
"""The prefix of the name of a model built in Python, which no file defines."""


def define_model(model: Model, recipe: Recipe | None = None) -> Definition:
    """Return the definition of a model object: that of its file, if the file's `make` returns the same model.

    A running script does not count, since importing it would run it again.
    """
    module = sys.modules.get(type(model.config).__module__)
    named = shipped_name(module)
    file = getattr(module, "__file__", None)
    if module is not None and isinstance(file, str) and module.__name__ != "__main__":
        make = getattr(module, MAKE, None)
        if (
            callable(make)
            and getattr(module, "Config", None) is type(model.config)
            and _alike(make(model.config), model)
        ):
            if named is not None:
                return definition(named)
            return Definition(file, type(model.config), recipe or Recipe(), Path(file), _module_contents(module), make)
    return Definition(f"{IN_PYTHON}{model.name}", NoSettings, recipe or Recipe(), None, {}, lambda _: model)


def _alike(a: Any, b: Any) -> bool:
    """Return whether two models were built from the same functions, settings and declarations."""
    if isinstance(a, Model) and isinstance(b, Model):
        return all(_alike(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Model))
    if isinstance(a, partial) and isinstance(b, partial):
        return a.func is b.func and _alike(a.args, b.args) and _alike(a.keywords, b.keywords)
    if hasattr(a, "__array__") and hasattr(b, "__array__"):
        return np.array_equal(np.asarray(a), np.asarray(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_alike, a, b))
    return a is b or bool(a == b)


_LOADED: dict[tuple[str, ...], Definition] = {}
"""Files are run once per content: a second run would create another Config class of the same name."""


def _texts(file: Path) -> dict[Path, bytes]:
    """Return the current contents of a file and of the files next to it that it imports."""
    texts = {each: each.read_bytes() for each in files_of(file) if each.is_file()}
    for each in list(texts):
        weights = each.with_suffix(WEIGHTS)
        if weights.name.encode() in texts[each] and weights.is_file():
            texts[weights] = weights.read_bytes()
    return texts


def _module_contents(module: ModuleType) -> dict[Path, bytes]:
    """Return the files of an imported module. Raises UsageError if one has changed since the import."""
    texts = _texts(Path(str(module.__file__)))
    for each in list(sys.modules.values()):
        name = getattr(each, "__file__", None)
        path = Path(name).absolute() if isinstance(name, str) else None
        if path is not None and path in texts and not is_as_written(each, texts[path]):
            raise UsageError(
                f"{path} has changed since it was imported, so a run would save other code than it runs; "
                "import it again: importlib.reload, or a new process"
            )
    return texts


def named_file(word: str) -> str | None:
    """Return the path in a word that names a file, or None."""
    place, colon, name = word.rpartition(":")
    if not colon or "/" in name or "\\" in name:
        place = word
    return place if place.endswith((".py", *IMPORTED)) or Path(place).is_file() else None


def define_module(
    word: str, file: Path | None, module: ModuleType, texts: Mapping[Path, bytes] | None = None
) -> Definition:
    """Return the model that `word` names in the module of its file. Raises Refusal unless there is exactly one.

    `file` is None for a shipped model. `texts` are the contents of the files that it was just loaded from; None for a
    module that was imported earlier.
    """
    recipe = getattr(module, "RECIPE", None)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise Refusal(f"RECIPE is {a_type(recipe)}; expected an opstage.Recipe")
    named = "" if file is None else word.removeprefix(named_file(word) or "").removeprefix(":")
    name = named or _only(module)
    found = find(module, name)
    config, make = _maker(found, name, module, word if file is None else file.stem)
    fields_of(config)  # while the modules in its annotations are loaded
    return Definition(
        word, config, recipe or Recipe(), file, _module_contents(module) if texts is None else texts, make
    )


def _only(module: ModuleType) -> str:
    """Return the name of the only model in a module."""
    names = list_models(module) or list(declaring(module))
    if not names:
        raise Refusal(
            "lacks a model: expected a function make(config) that returns an opstage.Model, or a function whose shapes "
            "are declared with @opstage.shapes(…); `opstage new my_model` writes a file to start from"
        )
    if len(names) > 1:
        raise Refusal(f"has {len(names)} models: {', '.join(names)}; name one, as in my_model.py:{names[0]}")
    return names[0]


@dataclass(frozen=True)
class NoSettings:
    """The config of a model without settings."""


def _maker(found: Any, name: str, module: ModuleType, called: str) -> tuple[type, Callable[[Any], Any]]:
    """Return the class of a model's config, and the function that builds the model from one."""
    if isinstance(found, Model):
        return NoSettings, lambda _: found
    shapes = declared(found)
    if shapes is not None:
        return NoSettings, partial(_of_program, found, shapes, called)
    if not callable(found):
        raise Refusal(f"{name} is {a_type(found)}; expected a function that returns an opstage.Model")
    taken = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    if not taken:
        return NoSettings, lambda _: found()
    if len(taken) > 1 or (name != MAKE and taken[0].name != "config"):
        raise Refusal(
            f"{name} takes {', '.join(p.name for p in taken)}: it is neither make(config) -> Model, nor a program "
            "whose shapes are declared with @opstage.shapes(…)"
        )
    hints = get_type_hints(found) if hasattr(found, "__annotations__") else {}
    config = hints.get(taken[0].name) or getattr(module, "Config", None)
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise Refusal(
            f"{name} takes a config; expected a dataclass Config in the file, whose fields are the model's settings"
        )
    return config, found


def _of_program(program: Callable[..., Any], shapes: Shapes, called: str, _: Any) -> Model:
    """Return a loss with declared shapes as a model without predictions."""
    trees = {}
    for name, source in (("params", shapes.params), ("state", shapes.state)):
        tree = source() if callable(source) else source
        without = [path for path, x in zip(paths(tree), flatten(tree)[0]) if not _has_values(x)]
        if without or (name == "params" and not flatten(tree)[0]):
            what = f"{name}.{without[0]} has" if without else "it declares no parameters with"
            raise UsageError(
                f"{called}: {what} a shape but no first value; declare it with opstage.init.Declaration(shape, "
                "initialiser), in @opstage.shapes(…, params=…)"
            )
        trees[name] = tree
    batch = tuple(shapes.inputs.values())
    return Model(called, None, trees["params"], program, None, batch, trees["state"])


def _has_values(leaf: Any) -> bool:
    return isinstance(leaf, Declaration) or hasattr(leaf, "__array__") or isinstance(leaf, (int, float))


def _unusable(error: Refusal, word: str = "") -> UsageError:
    place = f" ({error.source})" if error.source is not None else ""
    return UsageError(f"{word}: {error.reason}{place}" if word else f"{error.reason}{place}")


# source/ in a run directory: copies of the files, from which the run is loaded again ----------------------------------

_FILES = "source"


def keep_source(directory: RunDirectory, defined: Definition) -> dict[str, str]:
    """Write the model's files to source/; return the SHA-256 of each, by its path there. Empty for a shipped model."""
    digests: dict[str, str] = {}
    late = None if defined.file is None else late_import(next(iter(defined.texts)))
    if late is not None:
        raise UsageError(
            f"{late[0]}:{late[1]}: imports a file next to it when a function is called, so a run that is loaded from "
            "its own copies would take another file; move the import to the top of the file"
        )
    for name, text in _named(defined).items():
        directory.write(f"{SOURCE}/{name}", text)
        digests[name] = hashlib.sha256(text).hexdigest()
    return digests


def saved_model_file(directory: Path) -> Path | None:
    """Return the copy of the model's file in the run in `directory`, or None if its model has no file.

    Raises UsageError if a copy is missing or has changed.
    """
    digests = _digests(directory)
    for name, digest in digests.items():
        path = directory / SOURCE / name
        if not path.is_file():
            raise UsageError(f"{path}: is missing, and the model of the run in {directory} needs it")
        if hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            raise UsageError(
                f"{path}: has changed since the run was started: {directory} holds the parameters of what it was; "
                "restore it from a copy"
            )
    return directory / SOURCE / next(iter(digests)) if digests else None


def changes(directory: Path, defined: Definition) -> list[str]:
    """Return the files, by their original paths, that are gone or have changed since the run in `directory` kept
    them."""
    digests = _digests(directory)
    if not digests or defined.file is None:
        return []
    root, first = defined.file.absolute(), next(iter(digests))
    for _ in Path(first).parts:
        root = root.parent
    return [
        str(root / name)
        for name, digest in digests.items()
        if not (root / name).is_file() or hashlib.sha256(read_bytes(root / name)).hexdigest() != digest
    ]


def _named(defined: Definition) -> Mapping[str, bytes]:
    """Return the contents of the model's files, its own first, by path relative to the root of its imports."""
    if defined.file is None:
        return {}
    root = source_root(next(iter(defined.texts)))
    return {path.relative_to(root).as_posix(): text for path, text in defined.texts.items()}


def _digests(directory: Path) -> dict[str, str]:
    path = directory / RUN
    if not path.is_file():
        return {}
    held = run_document(path).get(_FILES)
    digests = {} if held is None else {name: digest.text() for name, digest in held.items()}
    for name in digests:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(f"{path}: names a file outside the run: {brief(name)}; restore it from a copy")
    return digests
