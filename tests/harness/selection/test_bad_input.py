"""Every option of a run with a wrong value gives one line and exit code 4, before a report folder is opened or
anything starts.

All runs share one process, which imports Coldproof once. Otherwise each would go on to an engine that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.one_after_another import outcomes

from coldproof import IMPORT_ROOT
from coldproof.harness.option_table import OPTIONS
from coldproof.harness.options import parse_duration
from coldproof.harness.selection.user_input import MAY_BE_EMPTY

USAGE = 4
PLUGINS = ("-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout")
SERVER = ("--engine-url", "http://127.0.0.1:9")
ISSUE = '[[issue]]\nrequirement = "{}"\nsignature = "crash*"\nversions = ""\nreason = "r"\nlink = "l"\n{}'
# Files of the tests' folder: name -> content. `folder` is an empty folder there.
FILES = {
    "file": "text",
    "requirement.toml": ISSUE.format("NOSUCH-9", ""),
    "cell.toml": ISSUE.format("LORA-1", 'cell = "nosuch*"\n'),
    "finding.toml": '[[accepted]]\nfinding = "vllm/nosuch"\nversions = ""\nreason = "r"\n',
    "pattern.toml": ISSUE.format("LORA-1", 'finding = "vllm/nosuch"\n'),
    "twice.toml": 2 * ISSUE.format("LORA-1", ""),
    "version.toml": ISSUE.format("LORA-1", "").replace('versions = ""', 'versions = "abc"'),
    "adapter/adapter_config.json": "{}",
    "whole/adapter_config.json": "{}",
    "whole/adapter_model.safetensors": "",
}
# `@name`: the path of such a file, `@missing` one of no file.
ROWS: list[tuple[tuple[str, ...], str]] = [
    (("--engine-url", "localhost:8000"), "--engine-url 'localhost:8000' is no URL of a server; use http://HOST:PORT"),
    (("--engine-url", "ftp://h:1"), "is no URL of a server"),
    (("--engine-url", "http://"), "is no URL of a server"),
    (("--engine-url", "http://h:abc"), "is no URL of a server"),
    (("--engine-url", "http://h:99999999"), "is no URL of a server"),
    (("--engine-url", "http://[::1"), "is no URL of a server"),
    (("--engine-url", "http://h:1/x y"), "is no URL of a server"),
    ((*SERVER, "--cold-url", "localhost:1"), "--cold-url 'localhost:1' is no URL of a server"),
    ((*SERVER, "--cold-url", "http://127.0.0.1:9/"), "--cold-url names the tested server"),
    ((*SERVER, "--cells", "nosuch"), "--cells nosuch: an attached server is one cell"),
    ((*SERVER, "--cells", "default"), "--cells default: an attached server is one cell"),
    (("--cells", "default,default"), "names 'default' twice"),
    (("--cells", "default,"), "has an empty name"),
    (("--layers", "exact,exact"), "names 'exact' twice"),
    (("--layers", "exact,"), "has an empty name"),
    (("--requirements", "SALT-1,SALT-1"), "names 'SALT-1' twice"),
    (("--requirements", "SALT-1,"), "has an empty name"),
    (("--model", "@folder"), "folder: no config.json there"),
    (("--model", "@file"), "file: no config.json there"),
    (("--model", "@missing"), "missing: no config.json there"),
    (("--model", "@missing.gguf"), "missing.gguf: no such file"),
    (("--worker", "fingerprint", "--model", "@folder"), "folder: no config.json there"),
    ((*SERVER, "--model", "@folder"), "give the folder of the model that the server serves"),
    ((*SERVER, "--model", "owner/name"), "owner/name: no config.json there"),
    (("--adapter", "@folder", "--adapter", "@whole"), "folder is not a PEFT LoRA adapter: no adapter_config.json"),
    (("--adapter", "@adapter", "--adapter", "@whole"), "adapter is not a PEFT LoRA adapter: no adapter_model.safeten"),
    ((*SERVER, "--adapter", "@missing", "--adapter", "@whole"), "missing is not a PEFT LoRA adapter"),
    (("--adapter", "@whole", "--adapter", "@whole"), "--adapter names one folder twice"),
    (("--weights", "@file"), "file: no *.safetensors there"),
    (("--budget", "99999999999999999h"), "invalid duration"),
    (("--budget", "nan"), "invalid duration"),
    (("--budget", "\u0663m"), "invalid duration"),
    (("--known-issues", "@folder"), "folder"),
    (("--known-issues", "@requirement.toml"), "entry 1 is for requirement 'NOSUCH-9', which is unknown"),
    (("--known-issues", "@cell.toml"), "entry 1, for LORA-1, is for cell 'nosuch*', which is unknown"),
    (("--known-issues", "@finding.toml"), "accepted finding 1, 'vllm/nosuch', is unknown"),
    (("--known-issues", "@pattern.toml"), "names the finding 'vllm/nosuch', which is unknown"),
    (("--known-issues", "@twice.toml"), "entry 2 repeats entry 1"),
    (("--known-issues", "@version.toml"), "Invalid specifier: 'abc'"),
    (("--noise", "gaussian:nan"), "is not a noise setting"),
    (("--noise", "gaussian:-1"), "is not a noise setting"),
    (("--noise", "gaussian:1e999"), "is not a noise setting"),
    (("--calibration", "@folder"), "no such file"),
    (("--calibration", "@file"), "file is not a results.json of this version"),
    (("--shared-dir", "@folder"), "--shared-dir requires --engine-url"),
    (("--replay", "@folder"), "is not a case file of this version: it is not a regular file"),
    (("--replay", "@file"), "is not a case file of this version"),
    (("--shard", "0/2"), "invalid shard"),
    (("--shard", "1/300000"), "cannot be divided into 300000 shards"),
    (("--examples-from", "a/b/c"), "invalid repository"),
    (("--json", "@folder"), "--json "),
    (("--cache-dir", "@file"), "file is a file; give a folder"),
    ((*SERVER, "--shared-dir", "@file"), "--shared-dir "),
]


def options_with_values() -> list[str]:
    """Return the options of a run that take a value."""
    valued = [name for name, settings in OPTIONS.items() if settings.get("action") != "store_true"]
    return [name for name in valued if name not in MAY_BE_EMPTY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the files."""
    made = tmp_path_factory.mktemp("given")
    (made / "folder").mkdir()
    for name, content in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(content)
    return made


Ended = Callable[[tuple[str, ...]], tuple[int, str]]


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    """Return a function that gives the exit code and output of the run with these arguments of the table, or with an
    empty option.
    """
    given = [*(words for words, _ in ROWS), *((f"{name}=",) for name in options_with_values())]
    # Examples are drawn from one file of the suites: collecting the others takes longer than all the rest.
    usual = ["suites/test_cache_salt.py", *PLUGINS, "--report-dir", str(folder / "report")]
    paths = [[str(folder / word[1:]) if word.startswith("@") else word for word in words] for words in given]
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    came = outcomes([[*usual, *words] for words in paths], environment)
    found = dict(zip(given, came, strict=True))
    return lambda words: found[words]


def clear_line(outcome: tuple[int, str]) -> str:
    """Return the one line that says what is wrong. Fail for a traceback, several lines, or another exit code."""
    code, said = outcome
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    (line,) = [line for line in said.splitlines() if "coldproof:" in line]
    assert code == USAGE
    return line


@pytest.mark.parametrize(("words", "says"), ROWS, ids=[" ".join(words) for words, _ in ROWS])
def test_a_wrong_value_ends_the_run_in_one_line(ended: Ended, folder: Path, words: tuple[str, ...], says: str) -> None:
    """No value is ignored, and no check waits until an engine needs the value."""
    assert says in clear_line(ended(words))
    assert not (folder / "report").exists()


@pytest.mark.parametrize("name", options_with_values())
def test_an_empty_value_is_no_value(ended: Ended, name: str) -> None:
    """An unset variable of a script would otherwise choose the default."""
    assert name in clear_line(ended((f"{name}=",)))


def test_a_duration_has_a_limit() -> None:
    """A year of examples is a typing error."""
    assert parse_duration("8784h") == 366 * 24 * 3600
    assert parse_duration("8785h") is None
