"""Coldproof. In a checkout its rooms are links to the folders at the top level; in an installation they are here."""

import os  # which Python has imported already: `python -m coldproof` finds other modules in the working folder first

_HERE = os.path.dirname(os.path.realpath(__file__))
IMPORT_ROOT = os.path.dirname(_HERE)  # what PYTHONPATH must have to import this package: src, or site-packages
if not os.path.isdir(os.path.join(_HERE, "adapters")):  # a checkout without symbolic links
    __path__.append(os.path.dirname(IMPORT_ROOT))
