"""Writes the generated model and adapters for a server, with the standard library alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from coldproof.adapters.common.tiny_model import make_adapter
from coldproof.adapters.spec.script.given import ADAPTERS, FILES, GENERATED, OWN_ADAPTERS
from coldproof.adapters.spec.script.http import CannotSay, get


def write_adapter(content: str, folder: Path) -> None:
    """Write an adapter's files to a folder, over existing ones."""
    recipe = ADAPTERS[content]
    if OWN_ADAPTERS and "path" in recipe:
        shutil.copytree(recipe["path"], folder, dirs_exist_ok=True)
        return
    make_adapter(folder, model_config(), **recipe)


def model_config() -> dict[str, Any]:
    """Return the config.json of the served model."""
    if GENERATED:
        return dict(json.loads((FILES / "model" / "config.json").read_text()))
    if not GENERATED:
        config = os.environ.get("MODEL_CONFIG")
        if not config:
            models = get(sys.argv[1] + "/v1/models")["data"]
            config = f"{next(one.get('root') or '' for one in models if not one.get('parent'))}/config.json"
        if not os.path.isfile(config):
            raise CannotSay("set MODEL_CONFIG to the path of the served model's config.json")
        return dict(json.loads(Path(config).read_text()))
