"""Environments: one file per capability, plain Python without torch or transformers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from ferrata.environments.base import Environment
from ferrata.environments.mixture import Mixture

BUILT_IN = {
    "tool_use": "ferrata.environments.tool_use:ToolUse",
    "reasoning": "ferrata.environments.reasoning:Reasoning",
    "planning": "ferrata.environments.planning:Planning",
    "memory": "ferrata.environments.memory:Memory",
    "self_improvement": "ferrata.environments.self_improvement:SelfImprovement",
    "multi_agent": "ferrata.environments.multi_agent:MultiAgent",
}
NEEDED = [name for name in vars(Environment) if not name.startswith("_")]
RESERVED = ("all", "confidence")  # keys of metrics/summary.json that are no environments


def get_environment(name: str) -> Environment:
    """The environment called `name`: a built-in one, or your own as `package.module:object`.

    Raises:
        FerrataError: there is no such environment, or the object is not one; there is no default
            to fall back to.
    """
    from ferrata.errors import FerrataError

    where = f"params.yaml: prepare.mixture: {name}"
    if name not in BUILT_IN and ":" not in name:
        raise FerrataError(
            f"{where}: unknown environment",
            found=repr(name),
            expected=f"one of {', '.join(sorted(BUILT_IN))}, or package.module:object",
            hint="correct the name in params.yaml",
        )
    found = load_object(BUILT_IN.get(name, name), where)
    try:
        environment = found() if isinstance(found, type) else found
    except TypeError as error:
        raise FerrataError(
            where,
            found=f"a class that cannot be made without arguments ({error})",
            expected="an environment, or a class of one without arguments",
            hint="README, 'A new capability', has an example",
        ) from error
    missing = [part for part in NEEDED if not hasattr(environment, part)]
    if missing:
        raise FerrataError(
            where,
            found=f"an object without {', '.join(missing)}",
            expected="an environment (ferrata.environments.base.Environment)",
            hint="README, 'A new capability', has an example",
        )
    return environment  # type: ignore[no-any-return]


def get_mixture(weights: Mapping[str, float]) -> Mixture:
    """The environments of `prepare.mixture` as one. Raises FerrataError as `get_environment`, or if
    an own environment has another's name."""
    from ferrata.errors import FerrataError

    environments: dict[str, Environment] = {}
    shares: dict[str, float] = {}
    for name, weight in weights.items():
        environment = get_environment(name)
        if environment.name in RESERVED:
            raise FerrataError(
                f"params.yaml: prepare.mixture: {name}",
                found=f"an environment with the name {environment.name!r}",
                expected="a name that means nothing else in metrics/summary.json",
                hint="change the attribute `name` of your environment",
            )
        if environment.name in environments:
            raise FerrataError(
                f"params.yaml: prepare.mixture: {name}",
                found=f"a second environment with the name {environment.name!r}",
                expected="a name of its own",
                hint="change the attribute `name` of your environment",
            )
        environments[environment.name] = environment
        shares[environment.name] = weight
    return Mixture(environments, shares)


def load_object(path: str, where: str) -> Any:
    """What `package.module:object` names, from the Python path.

    Raises:
        FerrataError: naming `where` the path stands, and what is missing.
    """
    from ferrata.config.paths import project_root
    from ferrata.errors import FerrataError

    module_name, _, attribute = path.partition(":")
    root = str(project_root())
    if root not in sys.path:  # stages run with `python -P`
        sys.path.append(root)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise FerrataError(
            where,
            found=f"module {module_name!r}: {error}",
            expected="a module that Python can import from the project's folder",
            hint="put the file next to params.yaml, or install its package",
        ) from error
    if not hasattr(module, attribute):
        raise FerrataError(
            where,
            found=f"no {attribute!r} in {module_name}",
            expected=f"one of {', '.join(n for n in vars(module) if not n.startswith('_'))[:200]}",
            hint="correct the name behind the colon",
        )
    return getattr(module, attribute)
