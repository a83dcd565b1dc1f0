"""Scripts of the checkout that are no part of the package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from support.paths import ROOT


def script(path: str) -> ModuleType:
    """Return a script as a module, which finds the files beside it as Python lets it. `path`: in the checkout."""
    folder = str((ROOT / path).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = Path(path).stem
    found = importlib.util.spec_from_file_location(name, ROOT / path)
    assert found is not None
    assert found.loader is not None
    loaded = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded
