"""The words of a child process are read as the options from which they were written."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coldproof.harness.option_table import OPTIONS, option_value, option_words


def read(words: list[str]) -> dict[str, object]:
    """Return what a parser of the table reads from the words, where it is not the default."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)
    return {name: one for name, one in vars(parser.parse_args(words)).items() if one != parser.get_default(name)}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_read_as_it_was_written(option: str) -> None:
    """This includes values that begin as an option does, and options that may be given without a value."""
    name, settings = option.removeprefix("--").replace("-", "_"), OPTIONS[option]
    if settings.get("action") == "store_true":
        assert read(option_words(**{name: True})) == {name: True}
        return
    for value in ("--two words", "x"):
        read_as = [value] if settings.get("action") == "append" else value
        assert read([*option_words(**{name: value}), "--guided"]) == {name: read_as, "guided": True}
    if "const" in settings:
        assert read(option_words(**{name: True})) == {name: settings["const"]}


def test_several_values_are_joined_or_repeated() -> None:
    """Names stand in one value with commas. Adapters are an option each."""
    assert option_words(cells=("one", "two"), adapter=(Path("a"), Path("b"))) == [
        *("--cells", "one,two"),
        *("--adapter", "a", "--adapter", "b"),
    ]


def test_what_is_not_given_is_left_out() -> None:
    """A value that is absent, false or empty gives no word. No option of another name is written."""
    assert option_words(cells=(), engine_url="", fault=None, guided=False) == []
    with pytest.raises(KeyError):
        option_words(celss=("one",))


@pytest.mark.parametrize("words", [["-k", "x", "--budget", "2m"], ["--budget=2m", "-q"]])
def test_a_value_is_found_in_either_form(words: list[str]) -> None:
    """It is the next word, or stands behind an equals sign."""
    assert option_value("--budget", words) == "2m"
    assert option_value("--noise", words) is None
