"""The user's Python files: which files one depends on, import with the functions in it, and changes since an import.

Any failure of an import is a `Refusal` with the line in the user's file.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import marshal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, final

from typing_extensions import override

from .ops.errors import OpstageError, Place, SourceLine, a_type, is_library, is_user_file, nearest
from .ops.spec import declared


class Refusal(Exception):
    """Why a target cannot be checked, and where."""

    def __init__(self, reason: str, source: SourceLine | None = None):
        super().__init__(reason)
        self.reason = reason
        self.source = source


# Files that a file depends on, found in its text ---------------------------------------------------------------------

_FRAMEWORK = Path(__file__).resolve().parent
"""The framework's folder. A user's file may be in its checkout; the framework's files are never the user's."""


def source_root(file: Path) -> Path:
    """The folder from which a file's own imports are found."""
    root = file.absolute().parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def files_of(file: Path) -> tuple[Path, ...]:
    """The file, and the local files that it imports, directly or indirectly, anywhere in their code."""
    file = file.absolute()
    root, found = source_root(file), {file: None}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        packages = [folder / "__init__.py" for folder in each.parents if folder.is_relative_to(root) and folder != root]
        for path in (*packages, *(path for _, paths in _imports(each, _tree(each), root) for path in paths)):
            if path.is_file() and path not in found:
                found[path] = None
                waiting.append(path)
    return tuple(found)


def late_import(file: Path) -> tuple[Path, int] | None:
    """The file and line of the first local import that is inside a function."""
    root = source_root(file)
    for each in files_of(file):
        tree = _tree(each)
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)
        }
        for node, paths in _imports(each, tree, root):
            if id(node) in inside and paths:
                return each, node.lineno
    return None


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ast.Module([], [])


def _imports(file: Path, tree: ast.Module, root: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, list[Path]]]:
    """The imports of a file, each with the files under `root` that it reads."""
    for node in ast.walk(tree):
        names: list[str] = []
        base = root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = file.parents[min(node.level, len(file.parents)) - 1]
            start = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(f"{start}{alias.name}" for alias in node.names)]
        else:
            continue
        found = [path for name in names for path in _files(base, name)]
        yield node, [path for path in found if not path.resolve().is_relative_to(_FRAMEWORK)]


def _files(base: Path, dotted: str) -> list[Path]:
    """The files that importing a dotted name from a folder reads there."""
    found, place = [], base
    for part in dotted.split("."):
        place = place / part
        found += [path for path in (place / "__init__.py", place.with_name(f"{place.name}.py")) if path.is_file()]
    return found


# Imports -------------------------------------------------------------------------------------------------------------


def load_file(path: Path) -> ModuleType:
    """Import a file as a module, with the same imports as if it were run; its `__main__` part does not run.

    It imports the modules in its own folder as they are now, even if this process has loaded other modules with their
    names.
    """
    path, names, root = _placed(path)
    sys.path.insert(0, str(root))
    sys.path.append(str(Path.cwd()))
    hidden = _hide(root)
    try:
        return _loaded(path, names, "checked")
    finally:
        sys.modules.update(hidden)


@contextmanager
def loaded_copy(path: Path) -> Iterator[ModuleType]:
    """Import a copied file as a module, with the modules copied beside it. While the block runs they are in
    `sys.modules`; afterwards the user's own modules of the same names are back."""
    path, names, root = _placed(path)
    hidden, before = _hide(root), set(sys.modules)
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        yield _loaded(path, names, "kept")
    finally:
        sys.path.remove(str(root))
        for name in set(sys.modules) - before:
            if _is_beneath(sys.modules[name], root) and not name.startswith("kept_"):
                del sys.modules[name]
        sys.modules.update(hidden)


def _hide(root: Path) -> dict[str, ModuleType]:
    """Remove the user's modules whose names also occur in `root` from `sys.modules`, and return them to be restored.

    Not this package's own, even if its checkout is the root: its classes must stay the ones that the user's file has.
    """
    beside = {each.stem for each in root.iterdir() if each.suffix == ".py" or each.is_dir()} - {__package__}
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in beside and _is_own(module) and name != "__main__"
    }
    for name in hidden:
        del sys.modules[name]
    return hidden


def _loaded(path: Path, names: list[str], kind: str) -> ModuleType:
    kept = SourceFileLoader.get_code
    import_from_text()
    try:
        if len(names) > 1:
            return load_module(".".join(names))
        # a name that is taken keeps its meaning; no two copies share a name
        taken = kind == "kept" or path.stem in sys.modules or not path.stem.isidentifier()
        return _executed(path, f"{kind}_{abs(hash(path))}" if taken else path.stem)
    finally:
        _HOOK.get_code = kept


def _is_own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_own_file(file)


def _is_beneath(module: ModuleType, root: Path) -> bool:
    return _is_own(module) and Path(str(module.__file__)).absolute().is_relative_to(root)


def _placed(path: Path) -> tuple[Path, list[str], Path]:
    """A file's absolute path, the parts of its module's name, and the folder where imports begin. Raises Refusal where
    there is no such file."""
    path = path.absolute()
    if not path.exists():
        beside = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise Refusal(f"no such file{nearest(path.name, beside)}")
    if path.is_dir():
        raise Refusal("is a folder, not a Python file")
    root = source_root(path)
    names = [*path.relative_to(root).parts[:-1], path.stem]
    return path, names[:-1] if len(names) > 1 and path.stem == "__init__" else names, root


def _executed(path: Path, name: str) -> ModuleType:
    with _refusing("cannot be imported", path):
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise Refusal("is not a Python file")
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromText(name, str(path))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


@final
class _FromText(SourceFileLoader):
    """Compiles the file's current text: cached bytecode would be used for a file of equal size changed in the same
    second."""

    @override
    def get_code(self, fullname: str) -> CodeType:
        self.compiled: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return self.compiled


def import_from_text() -> None:
    """From now on compile the user's own files from their current text: see `_FromText`."""
    kept = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        if not is_own_file(path):
            return kept(loader, fullname)
        code = vars(loader)["compiled"] = _FromText(fullname, path).get_code(fullname)
        return code

    _HOOK.get_code = get_code


_HOOK: Any = SourceFileLoader
"""The class that reads modules; Python has no hook that runs before it looks for cached bytecode."""


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, from the working directory or wherever Python finds it."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _refusing("cannot be imported", None):
            return importlib.import_module(name)
    except Refusal as refusal:
        cause = refusal.__cause__
        if (
            isinstance(cause, ModuleNotFoundError)
            and cause.name is not None
            and f"{name}.".startswith(f"{cause.name}.")
        ):
            raise Refusal(f"there is no module {cause.name}") from None
        raise


def find(module: ModuleType, path: str) -> Any:
    """Return the object at `path` (`loss`, `Model.loss`) in a module."""
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            names = sorted(_functions(found))
            has = f"; its functions are {', '.join(names)}" if names else "; it has no functions"
            raise Refusal(f"has no {path!r}{nearest(part, names or dir(found))}{has}")
        found = getattr(found, part)
    return found


def find_program(module: ModuleType, path: str) -> Callable[..., Any]:
    """The function at `path`."""
    found = find(module, path)
    if not callable(found):
        raise Refusal(f"{path} is {a_type(found)}, not a function")
    program: Callable[..., Any] = found
    return program


def declaring(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The module's own functions that declare their shapes, in file order."""
    return {
        name: value
        for name, value in vars(module).items()
        if declared(value) is not None and getattr(value, "__module__", None) == module.__name__
    }


@contextmanager
def _refusing(what: str, path: Path | None) -> Iterator[None]:
    """Turn any exception in the block into a Refusal that says `what`."""
    try:
        yield
    except Refusal:
        raise
    except BaseException as error:
        raise refusal(error, what, path) from error


def refusal(error: BaseException, what: str, path: Path | None) -> Refusal:
    """The Refusal for an exception raised by the user's code."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        column = error.offset or 0
        end = max(error.end_offset or 0, column + 1) if error.end_lineno == error.lineno else column + 1
        place = SourceLine(str(Path(error.filename).absolute()), error.lineno, column, end if column else 0)
        return Refusal(f"{what}: {type(error).__name__}: {error.msg}", place)
    line = user_line(error.__traceback__, path)
    if isinstance(error, SystemExit):
        return Refusal(f"{what}: it ends the process, with exit code {_code(error)}", line)
    if isinstance(error, OpstageError):
        return Refusal(f"{what}: {error}", line)
    return Refusal(f"{what}: {_named(error)}", line)


def user_line(traceback: TracebackType | None, path: Path | None) -> SourceLine | None:
    """The innermost line in the user's own files, or else in any file that belongs to neither a library nor the
    framework."""
    own: SourceLine | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_own_file(code.co_filename, path):
            own = Place(code, traceback.tb_lasti, traceback.tb_lineno).source
        traceback = traceback.tb_next
    return own


def is_own_file(file: str, path: Path | None = None) -> bool:
    """Whether a file is the user's: not a library's, not Python's, not the framework's."""
    if path is not None and file == str(path):
        return True
    return is_user_file(file) and not is_library(file)


def _named(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _code(error: SystemExit) -> str:
    return "0" if error.code is None else str(error.code) if isinstance(error.code, int) else f"1 ({error.code})"


def _functions(owner: Any) -> list[str]:
    """The functions that a module or a class itself defines."""
    name = getattr(owner, "__name__", "")
    return [
        key
        for key, value in vars(owner).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", name) == name
    ]


# Whether an imported module still matches its source text -------------------------------------------------------------


def is_as_written(module: ModuleType, text: bytes) -> bool:
    """Return whether an imported module is that of `text`: by the code that it was made from, if Python has kept that,
    and by its functions."""
    code = compile(text, str(module.__file__), "exec", dont_inherit=True)
    imported = _imported_code(module)
    return imported in (None, code) and {*_codes_of_functions(module, module, set())} <= {*_codes(code)}


def _imported_code(module: ModuleType) -> CodeType | None:
    """The code that a module was made from, as its loader or else Python's cache has it."""
    spec = module.__spec__
    code: CodeType | None = getattr(getattr(spec, "loader", None), "compiled", None)
    if code is None and spec is not None and spec.cached is not None and not sys.dont_write_bytecode:
        with suppress(OSError, ValueError, EOFError, TypeError):
            data = Path(spec.cached).read_bytes()
            code = marshal.loads(data[16:]) if data.startswith(importlib.util.MAGIC_NUMBER) else None
    return code


def _codes_of_functions(holder: Any, module: ModuleType, seen: set[int]) -> Iterator[CodeType]:
    """Yield the code of each function of a module, or of a class in it, that its file defines."""
    seen.add(id(holder))
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == module.__name__ and id(value) not in seen:
            yield from _codes_of_functions(value, module, seen)
        wraps = isinstance(value, (property, staticmethod, classmethod))
        parts: list[Any] = [getattr(value, p, None) for p in ("__func__", "fget", "fset", "fdel")] if wraps else [value]
        for each in parts:
            own = isinstance(each, FunctionType) and each.__module__ == module.__name__
            if own and each.__code__.co_filename == module.__file__:
                yield each.__code__


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
