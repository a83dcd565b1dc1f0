"""Coldproof. In a checkout its rooms are links to the folders at the top level; in an installation they are here."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
IMPORT_ROOT = _HERE.parent  # what a process must have on PYTHONPATH to import this package: src, or site-packages
if not (_HERE / "adapters").is_dir():  # a checkout without symbolic links
    __path__.append(str(_HERE.parent.parent))
