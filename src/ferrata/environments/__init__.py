"""Environments: one file per capability, plain Python without torch or transformers."""

from __future__ import annotations

from ferrata.environments.base import Environment


def get_environment(name: str) -> Environment:
    """Return the environment called `name`.

    Raises:
        FerrataError: no environment has this name; there is no default to fall back to.
    """
    from ferrata.environments.tool_use import ToolUse
    from ferrata.errors import FerrataError

    known: dict[str, type[Environment]] = {"tool_use": ToolUse}
    if name not in known:
        raise FerrataError(
            "params.yaml: prepare.environment: unknown environment",
            found=repr(name),
            expected=f"one of {', '.join(sorted(known))}",
            hint="correct the name in params.yaml",
        )
    return known[name]()
