r"""Remove secrets from text that is going to be printed, logged or reported.

A server may repeat a request's headers, and an engine may log its command and its environment. So everything that a run
writes passes through here: its events, cases, engine logs and terminal output. A secret is found by what stands before
it (`Authorization:`, `--hf-token`, `?api_key=`, `"password":`, `HF_TOKEN=`, `user:password@`), by its own form
(`hf_...`), or because a variable of this process's environment, or the URL of the server, has the same value.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

KEY_VARIABLE = "COLDPROOF_API_KEY"
HIDDEN = "***"
# Environment variables whose values are secrets, by the ends of their names.
SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)\Z", re.IGNORECASE)
LONGEST_LINE = 2**20  # characters of a file that are redacted at once
LITERAL = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')  # a string of a JSON text
SHORT = 80  # characters of such a string that may come again
LEAST_LENGTH = 8  # of such a value: a shorter one is often a number or a word of ordinary text

# The names of secrets. A token of a model is no secret, so that `token` alone is none of them.
NAME = (
    r"(?:api[-_]?key|password|passwd|passphrase|credentials?|secrets?(?:[-_](?:access[-_])?key)?|"
    r"(?:private|access|signing)[-_]key(?:[-_]id)?|"
    r"(?:hf|hub|huggingface|auth|access|bearer|refresh|session|security|api|github|gitlab|wandb|csrf|id)[-_]?token)"
)
OPTION = rf"--(?:[A-Za-z0-9]+[-_])*(?:{NAME}|token)"
# A JSON text in a JSON string has backslashes before its quotes. No repetition is without a limit where a text could
# make the search take the square of its length: a server may have written it.
QUOTE = r"\\{0,8}[\"']"
QUOTED = r".{0,8192}?"
UNQUOTED = r"[^\s\"'\\,;&)\]}]+"
RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # https://user:password@host, also with an @ in the password
    (
        re.compile(r"(\w://)[^/\s\"'<>]*@"),
        rf"\1{HIDDEN}@",
    ),
    # ?api_key=...&token=...
    (
        re.compile(r"([?&](?:[\w.-]*(?:key|token|secret|password|passwd|auth|sig|signature))=)[^&\s\"'\\#<>]+", re.I),
        rf"\1{HIDDEN}",
    ),
    # Authorization: Bearer ..., also as a JSON field or a Python tuple, and cookies
    (
        re.compile(rf"((?:authorization|cookie)(?:{QUOTE})?\s*[:=,]\s*[\[(]?\s*)({QUOTE}){QUOTED}\2", re.I),
        rf"\1\2{HIDDEN}\2",
    ),
    (
        re.compile(r"(authorization\s*[:=]\s*(?:(?:bearer|basic|digest|token)\s+)?)(?![\"'\\])[^\s\"'\\,;]+", re.I),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(r"(cookie\s*[:=]\s*)(?![\"'\\])[^\r\n\"'\\]+", re.I),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(r"\b(bearer\s+)(?=[^\s\"'\\]*\d|[^\s\"'\\]{16})[^\s\"'\\,;]{4,}", re.I),
        rf"\1{HIDDEN}",
    ),
    # --hf-token X, --hf-token=X, '--hf-token', 'X'
    (
        re.compile(rf"({OPTION}(?:{QUOTE})?(?:=|\s*,\s*|\s+)[\[(]?)({QUOTE}){QUOTED}\2", re.I),
        rf"\1\2{HIDDEN}\2",
    ),
    (
        re.compile(rf"({OPTION}(?:=|\s+))(?![\"'\\-]){UNQUOTED}", re.I),
        rf"\1{HIDDEN}",
    ),
    # "api_key": "...", 'api_key': ['...'], api_key=...
    (
        re.compile(rf"((?<![A-Za-z0-9]){NAME}(?:{QUOTE})?\s*[:=]\s*[\[(]?\s*)({QUOTE}){QUOTED}\2", re.I),
        rf"\1\2{HIDDEN}\2",
    ),
    (
        re.compile(rf"((?<![A-Za-z0-9]){NAME}\s*[:=]\s*)(?![\"'\\\[({{]|(?:None|null|true|false)\b){UNQUOTED}", re.I),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(rf"((?P<t>{QUOTE})token(?P=t)\s*:\s*)({QUOTE})(?=[^\"'\\]*\d)[A-Za-z0-9._~+/=-]{{16,}}\3", re.I),
        rf"\1\3{HIDDEN}\3",
    ),
    # HF_TOKEN=..., of the environment
    (
        re.compile(rf"(\b[A-Z][A-Z0-9]*_(?:[A-Z0-9]+_)*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)=)({QUOTE}){QUOTED}\2"),
        rf"\1\2{HIDDEN}\2",
    ),
    (
        re.compile(rf"(\b[A-Z][A-Z0-9]*_(?:[A-Z0-9]+_)*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)=)(?![\"'\\]){UNQUOTED}"),
        rf"\1{HIDDEN}",
    ),
    # The forms of well-known services
    (
        re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})"),
        HIDDEN,
    ),
)
# Whether any rule may apply: much faster than all of them, for the many texts without a secret.
SUSPECT = re.compile(
    r"://[^/\s]*@|[?&][\w.-]+=|authorization|cookie|bearer|api[-_]?key|passw|passphrase|credential|secret|"
    r"(?:private|access|signing)[-_]key|[a-z_-]token\b|token\W{0,4}:|_key=|hf_|sk-|gh[pousr]_",
    re.IGNORECASE,
)


_HIDDEN_VALUES: set[tuple[str, str]] = set()


def hide(name: str, value: str) -> None:
    """Redact a value from now on, in this process: a secret that is in no variable of the environment."""
    _HIDDEN_VALUES.add((name, value))


def redacted(text: str) -> str:
    """Return the text with every secret replaced by `***`. Redacting twice changes nothing more."""
    return without(literal_secrets(), text)


def without(secrets: re.Pattern[str] | None, text: str) -> str:
    """Return the text with every secret replaced: these literal ones, and all that the rules find."""
    if secrets is not None:
        text = secrets.sub(HIDDEN, text)
    if SUSPECT.search(text):
        for rule, replacement in RULES:
            text = rule.sub(replacement, text)
    return text


def literal_secrets() -> re.Pattern[str] | None:
    """Return a pattern of the secrets in this process's environment, and of the hidden values; None without any."""
    names = filter(may_be_secret, list(os.environ))
    variables = ((name, os.environ.get(name, "")) for name in names)  # another thread may change them meanwhile
    secret = (pair for pair in variables if len(pair[1]) >= (1 if pair[0] == KEY_VARIABLE else LEAST_LENGTH))
    return pattern_of(frozenset((*secret, *_HIDDEN_VALUES)))


@functools.lru_cache(maxsize=4096)
def may_be_secret(name: str) -> bool:
    """Return whether a variable of this name in the environment is a secret, if it is long enough."""
    return name == KEY_VARIABLE or bool(SECRET_VARIABLE.search(name))


@functools.lru_cache(maxsize=8)
def pattern_of(variables: frozenset[tuple[str, str]]) -> re.Pattern[str] | None:
    """Return a pattern of these values, as they are and as URLs, JSON and basic authentication write them.

    A short one counts only as a word of its own.
    """
    forms: set[str] = set()
    for _, value in variables:
        encoded = base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
        forms |= {value, quote(value, safe=""), json.dumps(value)[1:-1], encoded}
    words = [
        re.escape(form) if len(form) >= LEAST_LENGTH else rf"(?<![A-Za-z0-9_]){re.escape(form)}(?![A-Za-z0-9_])"
        for form in sorted(forms, key=len, reverse=True)
    ]
    return re.compile("|".join(words)) if words else None


def redacted_data(value: Any) -> Any:
    """Return plain data with every string redacted, the keys of objects included.

    A short word is left as it is, although it may be the API key: it may also be the name of a field or of a choice.
    """
    secrets = literal_secrets()  # once: to look through the environment for each string takes longer than an example

    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return clean_text(secrets, part)
        if isinstance(part, dict):
            return {clean(key): clean(item) for key, item in part.items()}
        return [clean(item) for item in part] if isinstance(part, list | tuple) else part

    return clean(value)


def clean_text(secrets: re.Pattern[str] | None, text: str) -> str:
    """Return one string of plain data redacted: see redacted_data."""
    return text if len(text) < LEAST_LENGTH and text.isalpha() else without(secrets, text)


def redacted_json(line: bytes) -> bytes:
    """Return a JSON text with every string redacted. Numbers, which most of an event is, are not looked at."""
    secrets = literal_secrets()

    def clean(found: re.Match[str]) -> str:
        literal = found[0]
        return (short_literal if len(literal) <= SHORT else clean_literal)(secrets, literal)

    return LITERAL.sub(clean, line.decode()).encode()


def clean_literal(secrets: re.Pattern[str] | None, literal: str) -> str:
    """Return a string of a JSON text, with its quotes, redacted."""
    text: str = msgspec.json.decode(literal)
    clean = clean_text(secrets, text)
    return literal if clean == text else msgspec.json.encode(clean).decode()


short_literal = functools.lru_cache(maxsize=4096)(clean_literal)  # the names of fields are in every event


def redact_file(path: Path) -> None:
    """Redact a text file of any size in place, and create no other file beside it. Nobody may be writing to it."""
    changed = False
    with (
        path.open(errors="surrogateescape", newline="") as before,
        tempfile.TemporaryFile("w+", errors="surrogateescape", newline="") as clean,
    ):
        while line := before.readline(LONGEST_LINE):
            shown = redacted(line)
            changed = changed or shown != line
            clean.write(shown)
        if changed:
            clean.seek(0)
            with path.open("w", errors="surrogateescape", newline="") as after:
                shutil.copyfileobj(clean, after)
