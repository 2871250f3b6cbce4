"""Is this the declared environment? Package versions and the interpreter's place."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from ferrata.config.loader import describe, parse_yaml, read_text
from ferrata.config.paths import project_root
from ferrata.errors import FerrataError


def declared_versions(root: Path | None = None) -> dict[str, str]:
    """Package -> version, as env.yaml says.

    Raises:
        FerrataError: env.yaml is missing, invalid, or a version is no text.
    """
    folder = (root or project_root()).resolve()
    # A study inside the project has params of its own, but one environment serves all.
    found = [f for f in (folder, *folder.parents) if (f / "env.yaml").is_file()]
    path = (found[0] if found else folder) / "env.yaml"
    versions: dict[str, str] = {}
    for name, version in parse_yaml(read_text(path), path.name).items():
        if not isinstance(version, str):
            raise FerrataError(
                f"env.yaml: {name}",
                found=describe(version),
                expected="a version as text",
                hint=f'put it in quotes: {name}: "{version}"',
            )
        versions[str(name)] = version
    return versions


def check_versions(*names: str, root: Path | None = None) -> None:
    """Compare installed with declared versions; a local suffix such as +cpu is ignored.

    Args:
        names: packages that the caller uses; none means all of env.yaml.
        root: folder of env.yaml; by default the project's.

    Raises:
        FerrataError: with one line per package that is missing, undeclared or of another version.
    """
    declared = declared_versions(root)
    problems = []
    for name in names or tuple(declared):
        if name not in declared:
            problems.append(f"{name}: not declared in env.yaml")
            continue
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{name}: found none installed, expected {declared[name]}")
            continue
        if installed.split("+")[0] != declared[name].split("+")[0]:
            problems.append(f"{name}: found {installed}, expected {declared[name]}")
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise FerrataError(
            f"the installed packages are not those of env.yaml\n{lines}",
            hint="make env (installs the declared versions), or change env.yaml and run again",
        )


def check_interpreter(root: Path | None = None) -> None:
    """Refuse an interpreter that is not the project's; its packages are not those declared.

    The project's environment is $FERRATA_ENV if set, else `.venv` in the project's root. `dvc exp
    run --temp` works in a copy without one; there any virtual environment with the declared
    versions will do.

    Raises:
        FerrataError: another interpreter runs.
    """
    folder = root or project_root()
    named = os.environ.get("FERRATA_ENV")
    expected = Path(named) if named else folder / ".venv"
    prefix = Path(sys.prefix).resolve()
    if prefix == expected.resolve():
        return
    if not named and not expected.exists() and sys.prefix != sys.base_prefix:
        check_versions(root=folder)
        return
    raise FerrataError(
        "this is not the project's Python environment",
        found=str(prefix),
        expected=str(expected),
        hint=". ./activate, then run the same command again (after `make env` if there is none)",
    )
