"""The table of the options of a run, from which the command line declares them and child processes get their words.

So a new option is one entry here, and a command that starts a run cannot misspell one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import ATTACH, EngineSpec
from coldproof.harness.option_words import ALLOW_NOT_EXERCISED, USUAL
from coldproof.reports.assemble.assemble import LEAST_SHOWN

REPORT = "coldproof-report"


def valued(metavar: str, text: str, **settings: object) -> dict[str, Any]:
    """Return the settings of an option with a value, with the parameters of argparse's `add_argument`."""
    return {"metavar": metavar, "help": text, **settings}


def repeated(metavar: str, text: str) -> dict[str, Any]:
    """Return the settings of an option that may be given several times."""
    return valued(metavar, text, action="append", default=[])


def flag(text: str) -> dict[str, Any]:
    """Return the settings of an option without a value."""
    return {"action": "store_true", "help": text}


def engine_help(spec: EngineSpec) -> str:
    """Return an engine's name, and the condition under which it is the default."""
    if not spec.default_for:
        return spec.name
    if spec is next(iter(ENGINES.values())):
        return f"{spec.name} (default)"
    return f"{spec.name} (default with {ATTACH if ATTACH in spec.default_for else f'--worker {spec.default_for[0]}'})"


OPTIONS: Mapping[str, dict[str, Any]] = {
    "--engine": valued(
        "NAME", f"{', '.join(map(engine_help, ENGINES.values()))}; a replayed case uses the engine of the case"
    ),
    "--engine-url": valued("URL", "attach to a running server"),
    "--cold-url": valued(
        "URL",
        "with --engine-url: a second server of the same kind and model with prefix caching off, for cold answers",
    ),
    "--prefill-apart": flag(
        "with --engine-url: the server is a router; one engine computes prompts and another one decodes"
    ),
    "--exclusive": flag(
        "with --engine-url: no other client uses the server during the run, so that its counters are those of the run"
    ),
    "--engine-args": valued("FLAGS", "more flags for an engine that Coldproof starts, as one string", default=""),
    "--worker": valued("NAME", "model (default), or fingerprint: vLLM without a neural network", default="model"),
    "--layers": valued(
        "NAME,...",
        "ways to run the requirements: exact (fingerprint worker in process), model (in process), server (over HTTP); "
        "default: all that the default engine has, or the one of --engine and --worker",
    ),
    "--prove": {"default": None, "help": argparse.SUPPRESS},  # the report of the run whose counterexamples are proved
    "--joined": {"default": "", "help": argparse.SUPPRESS},  # all layers of the run of which this process is one
    "--model": valued("PATH", "serve this model instead of the generated one"),
    "--adapter": repeated("PATH", "LoRA adapter (PEFT); give at least two, with different contents"),
    "--weights": repeated(
        "PATH",
        "another checkpoint of the model, of the same configuration, for requirements about updates of the weights",
    ),
    "--weight-policy": valued(
        "NAME",
        "what the engine must promise after an update of its weights: invalidates, on-reset or in-salt (default: what "
        "it documents)",
    ),
    "--cells": valued("NAME,...", "engine configurations; 'list' prints all (default: those of the profile)"),
    "--profile": valued(
        "NAME", "amount of testing: smoke (default), ci, release, qualify, soak or hardware", default="smoke"
    ),
    "--budget": valued("TIME", "time for drawing examples, for example 90s, 20m or 2h"),
    "--oracle": valued(
        "NAME",
        "source of cold answers: cold-engine, fresh-engine, same-engine, closed-form, or engine:NAME for another "
        "engine (default: the best one that the engine supports)",
    ),
    "--known-issues": valued(
        "FILE|ENGINE", "accepted causes: a TOML file, or the one that ships for an engine, such as vllm"
    ),
    "--update-known-issues": valued(
        "FILE",
        "propose known issues for the violations of this run, in a new file for review (default: in --report-dir)",
        nargs="?",
        const="",
    ),
    "--fault": valued("NAME", "inject a fault into the engines; 'list' prints all"),
    "--repairs": valued("NAME,...", "plant repairs of these findings into the engines, or of all that are 'known'"),
    "--noise": valued("KIND:NATS", "add noise to the scores of the engines, for example gaussian:0.05 or batch:0.05"),
    "--requirements": valued("ID,...", "test only these: ids such as LORA-3, or areas such as PRESS"),
    "--diagnose": valued(
        "WHICH",
        "run controls of cases, with one thing changed at a time: new (default: those whose cause is not known), all "
        "or none",
        default="new",
    ),
    "--findings": valued(
        "WHICH",
        "known findings of the engine (coldproof findings): replay them first, before anything is drawn (default), "
        "only them, or off",
    ),
    "--calibration": valued("RESULTS.json", "use the comparison rule of an earlier run against the same engine"),
    "--replay": valued("CASE.json", "run one saved case again"),
    "--examples-from": valued(
        "OWNER/REPO",
        "first try the examples that failed in the CI of this GitHub repository (needs GITHUB_TOKEN)",
    ),
    "--shard": valued("I/N", "run part I of N; `coldproof merge` merges the reports"),
    "--report-dir": valued(
        "DIR",
        f"folder for the report: new, empty or with a report (default: {REPORT}; for a replay, beside its case)",
    ),
    "--json": valued("FILE", "write results.json to this file too, and print one line for each requirement at the end"),
    "--cache-dir": valued(
        "DIR",
        "folder for generated models and adapters (default: .coldproof in a checkout, else the user's cache)",
    ),
    "--shared-dir": valued("DIR", "folder for adapter files that an attached server can read"),
    "--guided": flag(
        "also vary the drawn workloads, above all those that reached rare states of the engine, in this run or in an "
        "earlier one"
    ),
    ALLOW_NOT_EXERCISED: valued(
        "N",
        "do not fail the run for NOT EXERCISED if at least N requirements conform or are known issues; write =N "
        f"(default: {LEAST_SHOWN}, or all that the engine supports if these are fewer)",
        nargs="?",
        const=USUAL,
    ),
    "--allow-inconclusive": flag("do not fail the run for INCONCLUSIVE"),
}


def option_words(**values: object) -> list[str]:
    """Return the words of these options, named as in Python: `engine_url="http://..."`. Raises KeyError for no option.

    An option whose value is None, False or empty is left out; True is the option without a value. A tuple is one value
    with commas, or, where an option may be repeated, one value after the other.
    """
    return [word for name, value in values.items() for word in words_of(option_of(name), value)]


def option_of(name: str) -> str:
    """Return the option of a name in Python: "--engine-url" of "engine_url"."""
    return f"--{name.replace('_', '-')}"


def name_of(option: str) -> str:
    """Return the name of an option in Python: "engine_url" of "--engine-url"."""
    return option.removeprefix("--").replace("-", "_")


def words_of(option: str, value: object) -> list[str]:
    """Return the words of one option. The value is in the same word only where argparse would not read it otherwise."""
    settings = OPTIONS[option]
    if value is True:
        return [option]
    texts = [str(one) for one in value] if isinstance(value, tuple) else [str(value or "")]
    if settings.get("action") != "append":
        texts = [",".join(texts)]
    words: list[str] = []
    for text in filter(None, texts):
        words += [f"{option}={text}"] if text.startswith("-") or "nargs" in settings else [option, text]
    return words


def option_value(option: str, words: Iterable[str]) -> str | None:
    """Return the value of an option, given as the next word or after "="; None if the option is not given."""
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else next(left, "")
    return None
