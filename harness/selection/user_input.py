"""Refuses values of the user's that cannot work, whatever else was chosen: empty ones, URLs, files that are not there.

Each is one line with exit code 4, before the report folder is opened and anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coldproof.adapters.common.lora_digest import ADAPTER_FILES
from coldproof.adapters.common.redact import redacted
from coldproof.adapters.server.attach import is_server_url
from coldproof.harness.option_table import OPTIONS
from coldproof.harness.options import Options, UsageError
from coldproof.harness.selection.select import listed_names

MAY_BE_EMPTY = ("--engine-args", "--update-known-issues", "--joined")  # "" is what they have by default or alone


def check_empty(config: pytest.Config) -> None:
    """Raise UsageError for an option with an empty value."""
    for name in OPTIONS:
        given = config.getoption(name)
        if name not in MAY_BE_EMPTY and (given == "" or (isinstance(given, list) and "" in given)):
            raise UsageError(f"{name} is empty: give it a value, or leave it out")


def check_names(config: pytest.Config) -> None:
    """Raise UsageError for empty or repeated names in --requirements."""
    ids = config.getoption("--requirements")
    if ids is not None:
        listed_names("--requirements", ids)


def check_urls(options: Options) -> None:
    """Raise UsageError for a URL of no server, and for a cold server that is the tested one."""
    for option, url in (("--engine-url", options.engine_url), ("--cold-url", options.cold_url)):
        if url is not None and not (is_server_url(url) and url.isascii() and url.isprintable() and " " not in url):
            raise UsageError(f"{option} {redacted(url)!r} is no URL of a server; use http://HOST:PORT")
    both = [urlsplit(url) for url in (options.engine_url, options.cold_url) if url is not None]
    if len({(url.hostname, url.port, url.path.rstrip("/")) for url in both}) < len(both):
        raise UsageError("--cold-url names the tested server; give a second one, with prefix caching off")


def check_adapters(adapters: Sequence[Path]) -> None:
    """Raise UsageError for a folder without an adapter, and for one that is given twice."""
    if len(adapters) == 1:
        raise UsageError("give at least two --adapter options with different contents")
    for folder in adapters:
        lacking = [name for name in ADAPTER_FILES if not (folder / name).is_file()]
        if lacking:
            raise UsageError(
                f"--adapter {folder} is not a PEFT LoRA adapter: no {lacking[0]} there; give a folder with "
                f"{' and '.join(ADAPTER_FILES)}"
            )
    if len({folder.resolve() for folder in adapters}) < len(adapters):
        raise UsageError("--adapter names one folder twice; give adapters with different contents")


def check_files(options: Options) -> None:
    """Raise UsageError where a file is needed and a folder is given, or the other way round, or nothing needs it."""
    if options.shared_dir is not None and not options.attached and not options.joined:
        raise UsageError("--shared-dir requires --engine-url: engines that Coldproof starts read its own folders")
    for option, path in (("--json", options.json), ("--known-issues", options.known_issues)):
        if path is not None and path.is_dir():
            raise UsageError(f"{option} {path} is a folder; give a file")
    for option, path in (("--cache-dir", options.cache_dir), ("--shared-dir", options.shared_dir)):
        if path is not None and path.exists() and not path.is_dir():
            raise UsageError(f"{option} {path} is a file; give a folder")
