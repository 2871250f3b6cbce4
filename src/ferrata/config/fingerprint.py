"""Code as a dependency by meaning: the modules a script uses, and a hash of each.

DVC does not follow imports, and a dependency on all of `src` would rerun every stage at each
comment. The hash is taken over the syntax tree, so it depends on the minor version of Python; the
project pins one.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ferrata.errors import FerrataError

TRAINING_STAGES = ("base", "prepare", "sft", "rl", "rejection", "evaluate")
# What these do is seen by people, not by the models.
_NOT_IN_TRAINING = ("src/ferrata/tracking/", "src/ferrata/reporting/")
# These refuse or pass on, but never alter a value, and DVC tracks the values themselves: a better
# error message or a new key of another stage is no reason to train again. The modules of sections
# count where a stage imports them.
_NEUTRAL = (
    "src/ferrata/errors.py",
    "src/ferrata/config/loader.py",
    "src/ferrata/config/env.py",
    "src/ferrata/config/paths.py",
)
# Here docstrings become prompts: tool descriptions.
_DOCSTRINGS_COUNT = ("src/ferrata/environments/", "src/ferrata/chat.py", "capabilities/")


def closure(entry: Path, root: Path, own: Sequence[str] = ()) -> list[Path]:
    """The script and every project module that it imports, directly or not, sorted.

    Found by walking syntax trees: imports inside functions, relative imports, `from package import
    submodule`, the `__init__` of every package on the way, and modules named in text, as registries
    have them (`"ferrata.environments.tool_use"`, also with `:object`; an f-string or text that
    starts with a package and a dot takes in all its modules). Imports under `if TYPE_CHECKING:` do
    not run and are not followed. Tracking and reporting are left out of the training stages.

    Args:
        entry: the script; its name without suffix is the stage's.
        root: the project's root; modules are looked up in root/src, root and the script's folder.
        own: further names, `package.module:object`, that params.yaml brings into a training stage.

    Raises:
        FerrataError: a module cannot be parsed.
    """
    root, entry = root.resolve(), entry.resolve()
    left_out = _NEUTRAL + (_NOT_IN_TRAINING if entry.stem in TRAINING_STAGES else ())
    places = (root / "src", root, entry.parent)
    seen: set[Path] = set()
    todo = [entry]
    for name in own if entry.stem in TRAINING_STAGES else ():
        todo += _files(name.partition(":")[0], places)
    while todo:
        path = todo.pop()
        if path in seen or path.relative_to(root).as_posix().startswith(left_out):
            continue
        seen.add(path)
        for name in _names(_parse(path, root), _package(path, places)):
            todo += _files(name, places)
    return sorted(seen)


def fingerprint(files: Sequence[Path], root: Path) -> dict[str, str]:
    """File (relative to root) -> SHA-256 of its meaning.

    Hashed is the syntax tree without positions, comments, formatting and docstrings; in
    environments and chat docstrings count, for they become prompts.

    Raises:
        FerrataError: a file cannot be parsed.
    """
    root = root.resolve()
    hashes = {}
    for path in sorted(path.resolve() for path in files):
        name = path.relative_to(root).as_posix()
        tree = _parse(path, root)
        if not name.startswith(_DOCSTRINGS_COUNT):
            _drop_docstrings(tree)
        hashes[name] = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return hashes


def write_fingerprints(root: Path, folder: Path, own: Sequence[str] = ()) -> list[str]:
    """Write folder/NAME.json for each stages/NAME.py where it changed; remove those of no stage.

    `own` are modules that params.yaml names. `stages/code.py`, which calls this, and scripts whose
    name starts with `_` are no stages.

    Returns:
        The names of the stages whose fingerprint was written or removed, sorted.

    Raises:
        FerrataError: a module cannot be parsed; nothing is written.
    """
    scripts = {p.stem: p for p in (root / "stages").glob("*.py") if p.stem[0] != "_"}
    scripts.pop("code", None)
    texts = {}
    for name, script in scripts.items():
        hashes = fingerprint(closure(script, root, own), root)
        texts[name] = json.dumps(hashes, indent=1, sort_keys=True) + "\n"
    folder.mkdir(exist_ok=True)
    changed = []
    for name, text in texts.items():
        path = folder / f"{name}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    for path in folder.glob("*.json"):
        if path.stem not in texts:
            path.unlink()
            changed.append(path.stem)
    return sorted(changed)


def _parse(path: Path, root: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        name = path.relative_to(root)
        raise FerrataError(f"{name}, line {error.lineno}: {error.msg}") from None


def _package(path: Path, places: Sequence[Path]) -> str:
    """The package against which relative imports of a file are resolved."""
    for place in places:
        if path.is_relative_to(place):
            return ".".join(path.parent.relative_to(place).parts)
    return ""


def _running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except docstrings and what only type checkers see."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            children = [*node.orelse] if not isinstance(node.test, ast.UnaryOp) else children
        elif (doc := _docstring(node)) is not None:
            children.remove(doc)
        todo += children


def _names(tree: ast.Module, package: str) -> Iterator[str]:
    """Dotted names that may be modules; `a.*` stands for all modules of a package."""
    for node in _running_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            yield base
            for alias in node.names:
                yield f"{base}.{alias.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name.startswith("ferrata."):
                yield f"{name}*" if name.endswith(".") else name


def _files(name: str, places: Sequence[Path]) -> list[Path]:
    """The project's files behind a dotted name: packages' `__init__` and the module, or none."""
    parts = name.split(".")
    if not all(part.isidentifier() or part == "*" for part in parts):
        return []
    if parts[0] in sys.stdlib_module_names:
        return []
    for place in places:
        files: list[Path] = []
        folder = place
        for part in parts:
            if part == "*":
                files += folder.glob("*.py")
            elif (folder / f"{part}.py").is_file():
                files.append(folder / f"{part}.py")
            elif (init := folder / part / "__init__.py").is_file():
                files.append(init)
            folder /= part
        if files:
            return [file.resolve() for file in files]
    return []


def _docstring(node: ast.AST) -> ast.Expr | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            return first if isinstance(first.value.value, str) else None
    return None


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        doc = _docstring(node)
        if doc is not None:
            body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
            body.remove(doc)
            if not body and not isinstance(node, ast.Module):
                body.append(ast.Pass())
