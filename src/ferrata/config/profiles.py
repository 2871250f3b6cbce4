"""Profiles: small override files, written into params.yaml without touching its other lines.

A profile holds the keys it changes, nested as in params.yaml. A null removes a key or section. The
profile `default` restores every key that any other profile changes; it is laid under each of them,
so that a profile gives the same values whatever was written before, and keys that no profile
mentions keep what the user wrote.

The text is edited in place at the positions that the YAML parser reports. A round trip through an
emitter would keep comments too, but not their columns and blank lines where a section goes and
comes back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.config.loader import describe, parse_yaml, read_text, validate
from ferrata.config.paths import params_folder, project_root
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node

DEFAULT = "default"
_REMOVED = object()


def available(root: Path) -> list[str]:
    """Names of the profiles in root/profiles, sorted."""
    return sorted(path.stem for path in (root / "profiles").glob("*.yaml"))


def apply_profile(
    name: str, root: Path | None = None, folder: Path | None = None
) -> list[tuple[str, str, str]]:
    """Write a profile into params.yaml, in one step and only if the result is valid.

    Args:
        name: of a file in root/profiles, without suffix.
        root: the project's root.
        folder: of params.yaml; by default root if given, else the pipeline we are in.

    Returns:
        (dotted key, old value, new value) for each changed key, in the order of the file.

    Raises:
        FerrataError: no such profile, or the result would be invalid; params.yaml is untouched.
    """
    folder = folder or root or params_folder()
    root = root or project_root()
    names = available(root)
    if name not in names:
        from difflib import get_close_matches

        near = get_close_matches(name, names, n=1)
        raise FerrataError(
            f"unknown profile {name}",
            expected=f"one of {', '.join(names) or '(profiles/ is empty)'}",
            hint=f"ferrata profile {near[0]}" if near else None,
        )
    path = folder / "params.yaml"
    old = new = read_text(path)
    before = parse_yaml(old, path.name)
    layers = [DEFAULT] if DEFAULT in names else []
    for layer in layers + [name] * (name != DEFAULT):
        file = root / "profiles" / f"{layer}.yaml"
        text = read_text(file)
        parse_yaml(text, f"profiles/{file.name}")  # for its errors
        new = merge(new, text)
    after = parse_yaml(new, path.name)
    try:
        validate(after, path.name)
    except FerrataError as error:
        raise FerrataError(
            f"profile {name} on {path.name}: {error.what}", hint="params.yaml was left as it was"
        ) from None
    if new != old:
        _replace(path, new)
    return _differences(before, after)


def merge(text: str, overrides: str) -> str:
    """The text of a YAML mapping with another's keys written over it.

    Comments, columns and blank lines of untouched lines stay; a replaced value keeps the comment
    behind it, in its column where it fits. Sections that come in bring the lines of `overrides`.
    """
    if not text.endswith("\n"):
        text += "\n"
    edits: list[tuple[int, int, str]] = []
    target, source = _compose(text), _compose(overrides)
    _merge_maps(text, target, overrides, source, edits)
    # From the end, so that positions before an edit stay true. At one position the insertion (empty
    # span) belongs behind the removal that starts there.
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[0] == edit[1]))[::-1]:
        text = text[:start] + new + text[end:]
    return text


def _compose(text: str) -> MappingNode:
    from ruamel.yaml import YAML

    node: MappingNode = YAML(typ="safe", pure=True).compose(text)
    return node


def _is_map(node: Node) -> bool:
    return _id(node) == "mapping"


def _is_block(node: Node) -> bool:
    return _id(node) != "scalar" and not getattr(node, "flow_style", False)


def _id(node: Node) -> str:
    """scalar, sequence or mapping; ruamel declares it on the subclasses only."""
    return str(getattr(node, "id"))  # noqa: B009


def _is_null(node: Node) -> bool:
    return str(node.tag) == "tag:yaml.org,2002:null"


def _merge_maps(
    text: str,
    target: MappingNode,
    overrides: str,
    source: MappingNode,
    edits: list[tuple[int, int, str]],
) -> None:
    present = {key.value: (key, value) for key, value in target.value}
    for new_key, new_value in source.value:
        if new_key.value not in present:
            if not _is_null(new_value):
                if not _is_block(target):
                    raise FerrataError(
                        f"params.yaml, line {target.start_mark.line + 1}: cannot add "
                        f"{new_key.value} to a mapping in braces",
                        hint="write it over several lines, or restore it from git",
                    )
                lines = _lines(overrides, new_key, new_value, target.start_mark.column)
                at = _end_of_line(text, _end(target))
                edits.append((at, at, lines))
            continue
        key, value = present[new_key.value]
        if _is_null(new_value) and _is_block(target):
            edits.append((_start_of_line(text, key), _end_of_line(text, _end(value)), ""))
        elif _is_map(value) and _is_map(new_value):
            _merge_maps(text, value, overrides, new_value, edits)
        elif _is_block(value) or _is_block(new_value):
            lines = _lines(overrides, new_key, new_value, key.start_mark.column)
            edits.append((_start_of_line(text, key), _end_of_line(text, _end(value)), lines))
        else:
            start, end = value.start_mark.index, _end(value)
            new = overrides[new_value.start_mark.index : _end(new_value)]
            if new == text[start:end]:
                continue
            # The comment behind it stays in its column, or comes as near as one space.
            rest = text[end : _end_of_line(text, end)]
            blanks = len(rest) - len(rest.lstrip(" "))
            if rest.lstrip(" ").startswith("#"):
                new += " " * max(1, blanks + (end - start) - len(new))
                end += blanks
            edits.append((start, end, new))


def _end(node: Node) -> int:
    """Index behind the last character of a node; a block's own mark is behind later comments."""
    if _is_block(node) and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _start_of_line(text: str, node: Node) -> int:
    return text.rfind("\n", 0, node.start_mark.index) + 1


def _end_of_line(text: str, index: int) -> int:
    """Index behind the line feed of the line that holds the character before index."""
    if index and text[index - 1] == "\n":  # a block of text (|) ends behind its line feed
        return index
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _lines(text: str, key: Node, value: Node, column: int) -> str:
    """The lines of one key with its value and comments, moved to a column."""
    block = text[_start_of_line(text, key) : _end_of_line(text, _end(value))].rstrip("\n")
    shift = column - key.start_mark.column
    moved = [
        " " * shift + line if shift > 0 and line else line[-shift:] if shift < 0 else line
        for line in block.split("\n")
    ]
    return "\n".join(moved) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write beside and rename: an interruption leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode("utf-8"))
        temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FerrataError(f"{path.name} cannot be written", found=str(error)) from None


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    old, new = _flatten(before), _flatten(after)
    out = []
    for key in [*new, *(key for key in old if key not in new)]:
        a, b = old.get(key, _REMOVED), new.get(key, _REMOVED)
        if a is _REMOVED or b is _REMOVED or type(a) is not type(b) or a != b:
            out.append((key, _show(a), _show(b)))
    return out


def _show(value: Any) -> str:
    if value is _REMOVED:
        return "(absent)"
    return str(value) if isinstance(value, int | float | str) else describe(value)
