"""Joins the words of a command line that argparse would not read as one option.

It imports nothing of ours: `coldproof run` needs it before it starts pytest, which then imports the engines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

ALLOW_NOT_EXERCISED = "--allow-not-exercised"
USUAL = "default"  # --allow-not-exercised without a number


def join_values(args: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Return the arguments with each `--engine-args VALUE` joined into one word with an equals sign.

    argparse would read a VALUE such as --no-enable-prefix-caching as another option. `--allow-not-exercised` takes its
    number only with an equals sign: argparse would take the word behind it, such as the path of a test.
    """
    joined: list[str | os.PathLike[str]] = []
    words = iter(args)
    for word in words:
        if word == "--engine-args" and (value := next(words, None)) is not None:
            word = f"{word}={value}"
        joined.append(f"{word}={USUAL}" if word == ALLOW_NOT_EXERCISED else word)
    return joined
