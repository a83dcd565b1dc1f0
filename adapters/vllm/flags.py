"""Takes a flag out of vLLM's command line."""

from __future__ import annotations

DRAFTS_FLAG = "--speculative-config"


def split_flag(arguments: tuple[str, ...], wanted: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the last value of a flag, given as `--flag value` or `--flag=value`, and the other arguments.

    The value is None without the flag, and empty where a value is missing.
    """
    given, rest, words = None, [], iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == wanted:
            given = value if equals else next(words, "")
        else:
            rest.append(word)
    return given, tuple(rest)
