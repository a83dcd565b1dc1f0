"""The command that replays a case, as it can be typed where the run was started.

It has the options of the run that decide which engine runs the case: without its `--model`, `--adapter` or
`--engine-args` it would be another one. A case of an attached server is replayed there, by the calibration of its run,
which takes minutes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from coldproof.adapters.registry import ENGINES
from coldproof.harness.case.repairs import KNOWN, WITHOUT, chosen_repairs
from coldproof.harness.option_table import option_of, option_words
from coldproof.harness.options import FINGERPRINT, Options
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.oracles import is_other_engine

URLS = ("--engine-url", "--cold-url")
# What starts programs, loads files or writes here: a report may come from anybody, so the user gives these again.
GIVEN_AGAIN = ("engine_args", "model", "adapter", "weights", "shared_dir", "cache_dir")
PLACEHOLDER = "http://HOST:PORT"
CALIBRATION = "--calibration"  # of the run's own folder, which is not filed with a report


def replay_command(file: str, layer: str, oracle: str, config: Mapping[str, str], options: Options) -> str:
    """Return the command that replays the case in `file`. `config`: of the engine that failed."""
    words = ["coldproof", "replay", file, *replay_options(layer, oracle, config), *engine_options(options, layer)]
    return shlex.join(words)


def replay_options(layer: str, oracle: str, config: Mapping[str, str]) -> list[str]:
    """Return the options that a replay needs: the layer or worker of the case, and its oracle if that is an engine.

    `layer`: "" in a run of one. `config`: the engine's configuration.
    """
    exact = not layer and worker_of(config) == FINGERPRINT
    other = is_other_engine(oracle)
    return option_words(layers=layer, worker=exact and FINGERPRINT, oracle=other and oracle.split()[0])


def engine_options(options: Options, layer: str = "") -> list[str]:
    """Return the options of a run that decide which engine answers, and how it is compared.

    `layer`: of a run of several, which decides the engine.
    """
    return option_words(**engine_values(options, layer))


def engine_values(options: Options, layer: str = "") -> dict[str, object]:
    """Return the same as values by the names of the options in Python."""
    return {
        "engine": not layer and is_chosen(options) and options.engine,
        "engine_url": options.engine_url,
        "cold_url": options.cold_url,
        "prefill_apart": options.prefill_apart,
        "exclusive": options.exclusive,
        "calibration": options.attached and options.report_dir / "results.json",
        "model": options.model,
        "adapter": options.adapters,
        "weights": options.weights,
        "weight_policy": options.weight_policy,
        "engine_args": shlex.join(options.engine_args),
        "shared_dir": options.shared_dir,
        "noise": options.noise,
        "fault": options.fault,
        "repairs": repair_names(options),
    }


def repair_names(options: Options) -> tuple[str, ...]:
    """Return the repairs of a run as --repairs takes them: one word for all that are known, which are forty names, and
    one for each that a run of most of them lacks.
    """
    names = tuple(one.name for one in options.repairs)
    known = [one.name for one in chosen_repairs(options.engine, KNOWN)] if len(names) > 1 else []
    lacking = tuple(f"{WITHOUT}{name}" for name in known if name not in names)
    short = (KNOWN, *lacking)
    same = len(short) < len(names) and chosen_repairs(options.engine, ",".join(short)) == options.repairs
    return short if same else names


def own_options(options: Options) -> list[str]:
    """Return what `coldproof prove` wants to be given again: options that load files here, and addresses."""
    values = engine_values(options) | {"cache_dir": options.cache_dir}
    return option_words(**{n: value for n, value in values.items() if n in GIVEN_AGAIN or option_of(n) in URLS})


def is_chosen(options: Options) -> bool:
    """Return whether the engine of a run is not the one that a replay takes without the option."""
    return options.attached or options.engine not in ENGINES or not ENGINES[options.engine].default_for


def worker_of(config: Mapping[str, str]) -> str:
    """Return the --worker of a run by the configuration of its engine, which names the class."""
    return FINGERPRINT if "FingerprintWorker" in "".join(config.values()) else "model"


def portable_command(case: Case) -> str:
    """Return the command for somebody else, who has the case's file: without addresses and the folder of the run."""
    try:
        words = shlex.split(case.replay)
    except ValueError:  # the case is somebody else's
        words = []
    options = words[3:] if words[:2] == ["coldproof", "replay"] else []  # a finding's case has another command
    return shlex.join(["coldproof", "replay", f"{case.id}.json", *elsewhere(iter(options))])


def elsewhere(options: Iterator[str]) -> Iterator[str]:
    """Yield the options for another machine."""
    for word in options:
        if word == CALIBRATION:
            next(options, None)
        elif word in URLS:
            yield from (word, PLACEHOLDER)
            next(options, None)
        else:
            yield word
