"""MLflow's model registry: a model enters once per content, and comes back as it went in."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ferrata.errors import FerrataError
from ferrata.tracking.lineage import git_commit
from ferrata.tracking.runs import StageRun
from ferrata.tracking.store import TrackingUnreachable, connect, quiet_retries, workspace

REQUIREMENTS = ("torch", "transformers", "tokenizers", "accelerate")
HASH_TAG = "ferrata.model_hash"
PADDING_TAG = "ferrata.padding_side"
AGAIN = "dvc repro --force --single-item register"

# Spaces, digits, a token that is none, more than ASCII.
_PROBE = "Two pens at 3.50 each: <|x|>\n  7,00 €"


@dataclass(frozen=True)
class Registered:
    """A version in the registry; `created` is False if the same model was there before."""

    version: str
    created: bool


def model_hash(folder: Path) -> str:
    """SHA-256 (hex) of a model folder: names and contents of all its files.

    Raises:
        FerrataError: the folder is missing or empty.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise FerrataError(
            "no model to hash", found=f"no files in {folder}", hint="run the stage that makes it"
        )
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def register_model(
    model_dir: Path,
    *,
    name: str,
    alias: str,
    model_hash: str,
    scores: Mapping[str, float],
    run: StageRun,
    root: Path,
) -> Registered:
    """Put the model of `model_dir` into the registry as `name` and point `alias` at it.

    A version whose tag holds the same `model_hash` is used again. A new version is loaded back and
    compared (weights, chat template, special tokens, ids of a text) before it gets the alias.

    Raises:
        TrackingUnreachable: MLflow does not answer; nothing is registered.
        FerrataError: the folder holds no loadable model, or what comes back from MLflow differs.
    """
    if not run.online or run.run_id is None:
        raise _unreachable(run.uri)
    client, uri = _client(root)
    found = _reach(uri, lambda: _version_of(client, name, model_hash))
    if found is not None:
        _reach(uri, lambda: client.set_registered_model_alias(name, alias, found))
        return Registered(str(found), created=False)
    model, tokenizer = _load_folder(model_dir)
    side = tokenizer.padding_side
    model_id = _reach(uri, lambda: _log_model(model, tokenizer, model_dir, name, run, uri))
    if not _has_model(client, uri, name):
        _reach(uri, lambda: client.create_registered_model(name))
    tags = {
        PADDING_TAG: side,
        "ferrata.commit": git_commit(workspace(root)) or "unknown",
        "ferrata.stage": run.stage,
        **{f"ferrata.score.{key}": repr(float(value)) for key, value in scores.items()},
    }
    source = f"models:/{model_id}"
    made = _reach(
        uri,
        lambda: client.create_model_version(
            name, source, run_id=run.run_id, tags=tags, model_id=model_id
        ),
    )
    version = str(made.version)
    tokenizer.padding_side = side
    _check_same((model, tokenizer), _load_version(uri, f"models:/{name}/{version}", side), name)
    # Last, because this tag is what makes a later run trust the version.
    _reach(uri, lambda: client.set_model_version_tag(name, version, HASH_TAG, model_hash))
    _reach(uri, lambda: client.set_registered_model_alias(name, alias, version))
    run.tags({"ferrata.registered": f"{name}/{version}", HASH_TAG: model_hash})
    return Registered(version, created=True)


def load_registered(name: str, alias: str, *, root: Path | None = None) -> tuple[Any, Any]:
    """The registered model and its tokenizer, as they were in the folder.

    `root` defaults to the project's root.

    Raises:
        TrackingUnreachable: MLflow does not answer.
        FerrataError: no such name or alias, or its files are gone.
    """
    if root is None:
        from ferrata.config.paths import project_root

        root = project_root()
    client, uri = _client(root)
    from mlflow.exceptions import MlflowException

    try:
        with quiet_retries():
            version = client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if not _not_found(error):
            raise _unreachable(uri, error) from error
        raise FerrataError(
            f"no registered model {name}@{alias}",
            found=f"none in {uri}",
            hint=AGAIN,
        ) from None
    side = version.tags.get(PADDING_TAG)
    return _load_version(uri, f"models:/{name}/{version.version}", side)


def weights_digest(model: Any) -> str:
    """SHA-256 (hex) over names, types, shapes and bytes of a model's state dict."""
    import torch

    total = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{key}\0{plain.dtype}\0{tuple(plain.shape)}\n".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _client(root: Path) -> tuple[Any, str]:
    try:
        with quiet_retries():
            client, uri, _ = connect(root)
    except Exception as error:
        from ferrata.tracking.store import tracking_uri

        raise _unreachable(tracking_uri(root), error) from error
    return client, uri


def _reach(uri: str, call: Any) -> Any:
    """Call mlflow; a store that is gone becomes TrackingUnreachable, a refusal stays what it is."""
    from mlflow.exceptions import MlflowException

    try:
        with quiet_retries():
            return call()
    except (MlflowException, OSError) as error:
        code = getattr(error, "error_code", "INTERNAL_ERROR")
        if code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"):
            raise _unreachable(uri, error) from error
        raise


def _unreachable(uri: str, error: Exception | None = None) -> TrackingUnreachable:
    return TrackingUnreachable(
        "the model registry cannot be reached",
        found=f"{uri}{f': {error}' if error else ''}"[:300],
        expected="an answering MLflow server or a readable database",
        hint="start the server or unset MLFLOW_TRACKING_URI, then run: " + AGAIN,
    )


def _not_found(error: Exception) -> bool:
    # For a missing alias mlflow says INVALID_PARAMETER_VALUE, for a missing model that it
    # does not exist.
    code = getattr(error, "error_code", "")
    return code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


def _has_model(client: Any, uri: str, name: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        _reach(uri, lambda: client.get_registered_model(name))
    except MlflowException as error:
        if _not_found(error):
            return False
        raise
    return True


def _version_of(client: Any, name: str, digest: str) -> str | None:
    # The name is compared here and not in the filter, where a quote in it would end the string.
    found = client.search_model_versions(f"tags.`{HASH_TAG}` = '{digest}'")
    return next((str(version.version) for version in found if version.name == name), None)


def _load_folder(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Absolute, because mlflow looks `models/rl` up as a repository of the hub (card and licence),
    # which is another model or a wait for the network; an absolute path is no repository's name.
    path = str(Path(folder).resolve())
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise FerrataError("the model cannot be loaded", found=f"{path}: {error}") from error
    model.eval()
    return model, tokenizer


def _log_model(
    model: Any, tokenizer: Any, model_dir: Path, name: str, run: StageRun, uri: str
) -> str:
    import mlflow
    import mlflow.transformers
    from huggingface_hub import ModelCard
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    mlflow.set_tracking_uri(uri)
    # Else the logged model would belong to mlflow's experiment 0, whose artifacts lie in ./mlruns.
    mlflow.set_experiment(experiment_id=run.experiment_id)
    card = ModelCard(
        f"---\nlicense: other\n---\n\n{name}: the model of {Path(model_dir).name}, "
        "trained by Ferrata. Its licence is that of the base model.\n"
    )
    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(DataType.string)]),
        params=ParamSchema([ParamSpec("max_new_tokens", DataType.integer, 32)]),
    )
    with _quiet_logging():
        # Model.log is what mlflow.transformers.log_model calls; only here can the check of the
        # input example be turned off, which loads the model a second time and generates with it.
        info = Model.log(
            artifact_path=None,
            name="model",
            flavor=mlflow.transformers,
            run_id=run.run_id,
            transformers_model={"model": model, "tokenizer": tokenizer},
            task="text-generation",
            model_card=card,
            signature=signature,
            input_example="What is 2 + 3?",
            validate_serving_input=False,
            pip_requirements=_requirements(),
        )
    return str(info.model_id)


def _requirements() -> list[str]:
    """Installed versions without a local suffix such as +cpu, which no package index has."""
    return [f"{package}=={metadata.version(package).split('+')[0]}" for package in REQUIREMENTS]


def _load_version(uri: str, source: str, padding_side: str | None) -> tuple[Any, Any]:
    import mlflow
    import mlflow.transformers
    from mlflow.exceptions import MlflowException

    mlflow.set_tracking_uri(uri)
    try:
        with _quiet_logging(), quiet_retries():
            parts = mlflow.transformers.load_model(source, return_type="components")
    except (OSError, ValueError, MlflowException) as error:
        raise FerrataError(
            f"the registered model {source} cannot be loaded",
            found=f"{uri}: {error}"[:300],
            hint=f"if its files were deleted, delete the version in MLflow, then run: {AGAIN}",
        ) from error
    tokenizer = parts["tokenizer"]
    if padding_side is not None:
        # transformers' pipeline, through which mlflow saves, turns it to "left".
        tokenizer.padding_side = padding_side
    return parts["model"].eval(), tokenizer


def _check_same(before: tuple[Any, Any], after: tuple[Any, Any], name: str) -> None:
    """Raise FerrataError unless model and tokenizer came back as they went in."""
    (model, tokenizer), (model_back, tokenizer_back) = before, after
    pairs = {
        "weights": (weights_digest(model), weights_digest(model_back)),
        "chat template": (tokenizer.chat_template, tokenizer_back.chat_template),
        "special tokens": (tokenizer.special_tokens_map, tokenizer_back.special_tokens_map),
        "vocabulary": (tokenizer.get_vocab(), tokenizer_back.get_vocab()),
        "padding side": (tokenizer.padding_side, tokenizer_back.padding_side),
        "ids of a text": (tokenizer(_PROBE)["input_ids"], tokenizer_back(_PROBE)["input_ids"]),
    }
    different = [what for what, (old, new) in pairs.items() if old != new]
    if different:
        raise FerrataError(
            f"model {name} came back from MLflow changed",
            found=f"different: {', '.join(different)}",
            expected="what was registered",
            hint="the alias was not moved; delete the version in MLflow",
        )


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Hide mlflow's warnings about the card and licence of a hub model: this one is from no hub."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
