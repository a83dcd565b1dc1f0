"""Remove secrets from text that is going to be printed, logged or reported."""

from __future__ import annotations

import os
import re

KEY_VARIABLE = "COLDPROOF_API_KEY"


def redacted(text: str) -> str:
    """Return the text with URL passwords, `--api-key` values and the API key itself replaced by `***`."""
    key = os.environ.get(KEY_VARIABLE)
    if key:
        text = text.replace(key, "***")
    text = re.sub(r"(\w://)[^/@\s]+@", r"\1***@", text)
    return re.sub(r"(--api-key[=\s]+)[^\s'\"]+", r"\1***", text)
