"""Reads and validates params.yaml; all errors are shown at once, with the nearest valid key.

YAML is read as version 1.2 (ruamel): version 1.1, as PyYAML has it, takes 1e-5 for text and `no`
for false.
"""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ferrata.config.arms import NAME_PATTERN, RESERVED, Arm
from ferrata.config.params import SECTIONS, Params
from ferrata.config.paths import params_folder, project_root
from ferrata.config.section import Section
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["load", "load_all", "parse_yaml", "project_root", "validate"]

_S = TypeVar("_S", bound=Section)
_MAX_SEED = 2**32 - 1  # NumPy's limit


def load(root: Path | None = None) -> Params:
    """What stages call: `p = load()`, then `p.rl.learning_rate`, `p.seed`.

    The whole file is validated, also what the stage does not read: a mistake is to show before an
    hour of training.

    Args:
        root: folder of params.yaml; by default the pipeline around the current folder.

    Raises:
        FerrataError: the file is missing, no valid YAML, or any key is unknown, inactive, missing
        or wrong.
    """
    folder = params_folder() if root is None else root
    path = folder / "params.yaml"
    return validate(parse_yaml(read_text(path), path.name), path.name)


load_all = load


def read_text(path: Path) -> str:
    """The text of a file of the project.

    Raises:
        FerrataError: it is missing or not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise FerrataError(
            f"{path.name} is missing", found=f"no file {path}", hint=f"git checkout {path.name}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FerrataError(f"{path.name} cannot be read", found=f"{path}: {error}") from None


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Plain values of a YAML 1.2 mapping; `name` is the file's name for messages.

    Raises:
        FerrataError: duplicate key, invalid YAML (with the line), or no mapping.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    # pure: the C loader knows YAML 1.1 only.
    yaml = YAML(typ="safe", pure=True)
    try:
        data = yaml.load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark is not None else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if problem.startswith("found duplicate key"):
            key = problem.split('"')[1]
            raise FerrataError(
                f"{where}: duplicate key {key}", hint="keep one of the two lines"
            ) from None
        raise FerrataError(
            f"{where}: invalid YAML: {problem}", hint="check indentation, colons and quotes"
        ) from None
    except ValueError as error:  # for example an impossible date
        raise FerrataError(f"{name}: invalid YAML: {error}") from None
    if not isinstance(data, dict):
        raise FerrataError(
            f"{name}: no keys", found=describe(data), expected="a mapping of keys to values"
        )
    return data


def validate(data: dict[str, Any], name: str = "params.yaml") -> Params:
    """Check plain values against all sections.

    Args:
        data: what `parse_yaml` returned.
        name: the file's name for messages.

    Raises:
        FerrataError: with one line per error, all of them.
    """
    problems: list[str] = []
    parts: dict[str, Any] = {}

    seed = data.get("seed")
    if "seed" not in data:
        problems.append(f"seed: missing; expected an integer, 0 to {_MAX_SEED}")
    elif isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MAX_SEED:
        problems.append(
            f"seed: found {describe(seed)}, expected an integer >= 0 and <= {_MAX_SEED}"
            + _number_hint(seed, int)
        )
    else:
        parts["seed"] = seed

    for section, model in SECTIONS.items():
        if section not in data:
            problems.append(f"{section}: missing section; its keys: {', '.join(_required(model))}")
            continue
        parts[section] = _check(model, data[section], section, problems)
    parts["arms"] = _check_arms(data, problems)

    for key in data:
        if key not in SECTIONS and key not in ("seed", "arms"):
            problems.append(_unknown(str(key)))

    problems += _cross_checks({key: part for key, part in parts.items() if part is not None})
    if problems:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        lines = "\n".join(f"  {name}: {problem}" for problem in problems)
        raise FerrataError(f"{count} in {name}\n{lines}")
    return Params(**parts)


def _check_arms(data: dict[str, Any], problems: list[str]) -> dict[str, Arm] | None:
    if "arms" not in data:
        problems.append("arms: missing section; one entry per arm: NAME: {policy, model, shots}")
        return None
    raw = data["arms"]
    if not isinstance(raw, dict) or not raw:
        problems.append(f"arms: found {describe(raw)}, expected at least one arm")
        return None
    before = len(problems)
    arms: dict[str, Arm] = {}
    for name, value in raw.items():
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            problems.append(
                f"arms.{name}: expected a name of a-z, 0-9 and _ that starts with a letter"
            )
        elif name in RESERVED or "_minus_" in name:
            problems.append(
                f"arms.{name}: this name means something else in metrics/summary.json; "
                f"choose one other than {', '.join(RESERVED)}, without _minus_"
            )
        arm = _check(Arm, value, f"arms.{name}", problems)
        if arm is not None:
            arms[name] = arm
    return arms if len(problems) == before else None


def _cross_checks(parts: dict[str, Any]) -> list[str]:
    """What spans sections; a check whose sections are wrong already is left out."""
    problems: list[str] = []
    chat, base, episodes = parts.get("chat"), parts.get("base"), parts.get("episodes")
    scratch = base.scratch if base else None
    if scratch and chat and chat.template == "model":
        problems.append(
            "chat.template: found 'model', expected ferrata: "
            "with base.source: scratch the model has no template of its own"
        )
    if scratch and episodes and scratch.max_position < episodes.max_context_tokens:
        problems.append(
            f"base.scratch.max_position: found {scratch.max_position}, expected at least "
            f"episodes.max_context_tokens ({episodes.max_context_tokens})"
        )
    rl, prepare = parts.get("rl"), parts.get("prepare")
    if rl and prepare and rl.tasks_per_step > prepare.train_tasks:
        problems.append(
            f"rl.tasks_per_step: found {rl.tasks_per_step}, expected at most "
            f"prepare.train_tasks ({prepare.train_tasks})"
        )
    launch = parts.get("launch")
    processes = launch.processes if launch else 1
    if rl and rl.tasks_per_step % processes:
        # A group stays in one process, so that its samples can be numbered there.
        problems.append(
            f"rl.tasks_per_step: found {rl.tasks_per_step}, expected a multiple of "
            f"launch.processes ({processes})"
        )
    elif rl and (rl.tasks_per_step * rl.group_size) % (rl.micro_batch_size * processes):
        problems.append(
            f"rl.micro_batch_size: found {rl.micro_batch_size}, expected a divisor of "
            "rl.tasks_per_step * rl.group_size / launch.processes "
            f"({rl.tasks_per_step * rl.group_size // processes})"
        )
    sft = parts.get("sft")
    if sft and sft.batch_size % (sft.micro_batch_size * processes):
        problems.append(
            f"sft.micro_batch_size: found {sft.micro_batch_size}, expected a divisor of "
            f"sft.batch_size / launch.processes ({sft.batch_size / processes:g})"
        )
    arms, register = parts.get("arms"), parts.get("register")
    if arms and register:
        models = [name for name, arm in arms.items() if arm.policy == "model"]
        if register.arm not in models:
            problems.append(
                f"register.arm: found {register.arm!r}, expected an arm with policy model: "
                f"{', '.join(models) or 'there is none'}"
            )
    return problems


def _check(model: type[_S], value: Any, prefix: str, problems: list[str]) -> _S | None:
    """Validate one section; on errors append their lines and return None."""
    if not isinstance(value, dict):
        keys = ", ".join(_required(model))
        problems.append(f"{prefix}: found {describe(value)}, expected the keys {keys}")
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            loc = [str(part) for part in detail["loc"]]
            path = ".".join([prefix, *loc])
            if detail["type"] == "extra_forbidden":
                problems.append(_unknown(path))
                continue
            problems.append(f"{path}: {_explain(dict(detail), _field(model, loc))}")
        return None


def _explain(detail: dict[str, Any], field: FieldInfo | None) -> str:
    expected = _expected(field)
    if detail["type"] == "missing":
        note = f" ({field.description})" if field is not None and field.description else ""
        return f"missing; expected {expected}{note}"
    found = detail["input"]
    if detail["type"] == "value_error":
        message = str(detail["ctx"]["error"])
        if not message.startswith("expected"):
            return message
        return f"found {describe(found)}, {message}"
    kind = field.annotation if field is not None else None
    return f"found {describe(found)}, expected {expected}{_number_hint(found, kind)}"


def _number_hint(found: object, kind: object) -> str:
    """What to write where a number was put in quotes."""
    if kind not in (int, float) or not isinstance(found, str):
        return ""
    try:
        float(found)
    except ValueError:
        return ""
    written = re.sub(r"^([-+]?\d+)(?=[eE])", r"\1.0", found.strip())
    return f"; write {written}, without quotes"


def describe(value: object) -> str:
    """A value of a YAML file with its kind, for messages: `3 (integer)`, `'1e-5' (text)`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true or false)"
    if isinstance(value, int):
        return f"{value} (integer)"
    if isinstance(value, float):
        return f"{value} (number)"
    if isinstance(value, str):
        return f"{value if len(value) <= 60 else value[:57] + '...'!r} (text)"
    if isinstance(value, dict):
        return f"a mapping with the keys {', '.join(map(str, value))}" if value else "no keys"
    if isinstance(value, list):
        return "a list"
    return f"{value} ({type(value).__name__})"


def _expected(field: FieldInfo | None) -> str:
    """The type and range of a field in words."""
    if field is None:
        return "another value"
    kind = field.annotation
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(kind))
    if (inner := _subsection(field)) is not None:
        return f"a section with the keys {', '.join(_required(inner))}"
    words = {int: "an integer", float: "a number", str: "text"}
    if kind not in words:
        return field.description or "another value"
    bounds = []
    for rule in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (bound := getattr(rule, attribute, None)) is not None:
                bounds.append(f"{sign} {bound}")
        if getattr(rule, "min_length", None):
            bounds.append("that is not empty")
    return " ".join([words[kind], " and ".join(bounds)]).strip()


def _subsection(field: FieldInfo) -> type[Section] | None:
    """The section class of a nested section, also of an optional one."""
    kinds = [field.annotation, *typing.get_args(field.annotation)]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _field(model: type[Section], loc: list[str]) -> FieldInfo | None:
    field: FieldInfo | None = None
    current: type[Section] | None = model
    for part in loc:
        if current is None:
            return field  # an entry of a mapping or a list: what its key is described as
        field = current.model_fields.get(part)
        if field is None:
            return None
        current = _subsection(field)
    return field


def _required(model: type[Section]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


def _valid_keys() -> list[str]:
    """Every valid key, dotted; an arm's name is `*`."""

    def walk(model: type[Section], prefix: str) -> list[str]:
        keys = []
        for name, field in model.model_fields.items():
            keys.append(f"{prefix}.{name}")
            if (inner := _subsection(field)) is not None:
                keys += walk(inner, f"{prefix}.{name}")
        return keys

    keys = ["seed", "arms", *SECTIONS]
    for section, model in SECTIONS.items():
        keys += walk(model, section)
    return keys + walk(Arm, "arms.*")


def _unknown(path: str) -> str:
    """The line for an unknown key: the nearest valid one, or where this name is valid."""
    from difflib import get_close_matches

    valid = _valid_keys()
    if path in valid:  # a dotted key at the top level
        section, rest = path.split(".", 1)
        return f"{path}: unknown key; write it nested: {rest} under {section}:"
    parent, _, name = path.rpartition(".")
    pattern = re.sub(r"^arms\.[^.]+", "arms.*", parent)
    siblings = [key for key in valid if key.rpartition(".")[0] == pattern]
    by_name = {key.rpartition(".")[2]: key for key in siblings}
    # A typing mistake in the right section comes first, then the right key in the wrong section.
    if near := get_close_matches(name, by_name, n=1, cutoff=0.75):
        return f"{path}: unknown key; nearest valid key: {_as_written(by_name[near[0]], parent)}"
    elsewhere = [key for key in valid if key.rpartition(".")[2] == name]
    if elsewhere:
        return f"{path}: unknown key; {name} belongs to {', '.join(elsewhere)}"
    candidates = get_close_matches(name, by_name, n=1, cutoff=0.0)
    anywhere = get_close_matches(path, valid, n=1, cutoff=0.8)
    best = anywhere or [by_name[near] for near in candidates] or ["seed"]
    return f"{path}: unknown key; nearest valid key: {_as_written(best[0], parent)}"


def _as_written(key: str, parent: str) -> str:
    return key.replace("arms.*", parent) if parent.startswith("arms.") else key
