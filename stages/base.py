"""Stage base: obtain the pretrained model, with safetensors weights and the chat template."""

from __future__ import annotations

import sys

from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.environments import get_mixture
from ferrata.errors import run_main
from ferrata.tracking.runs import stage_run
from ferrata.training.base import obtain


def main() -> None:
    check_interpreter()
    check_versions("torch", "transformers", "tokenizers")
    params, folder = load(), params_folder()
    settings = {
        "seed": params.seed,
        "base": params.base.model_dump(),
        "chat": params.chat.model_dump(),
    }
    with stage_run("base", settings, root=project_root()) as run:
        metrics = obtain(
            params.base,
            params.chat,
            get_mixture(params.prepare.weights),
            folder / "models" / "base",
            params.seed,
        )
        run.metrics(metrics)
    print(
        f"base model: {metrics['parameters']:,.0f} parameters, {metrics['vocabulary']:,.0f} tokens"
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
