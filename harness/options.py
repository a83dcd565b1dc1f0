"""The options of a run as one frozen value, and the profiles. harness/selection/validation.py checks the options."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec

from coldproof.adapters.registry import ENGINES, attached, layer_of
from coldproof.adapters.spec.layer import SERVER_LAYER, Layer
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.schema.oracles import CLOSED_FORM, OTHER_ENGINE_PREFIX, is_other_engine

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}
LONGEST_SECONDS = 366 * 24 * 3600.0
INVALID_DURATION = "invalid duration; use for example 90s, 20m or 2h"


class UsageError(Exception):
    """Wrong use of the command line. The message says what to change. The run ends with exit code 4."""


class Profile(msgspec.Struct, frozen=True):
    """The amount of work of a run: examples, time, and time limits for one counterexample.

    An engine's specification says which of its cells a profile has.
    """

    examples: int  # maximum for each test
    seconds: float  # for drawing examples, all tests together
    tokens: int  # maximum in one workload
    # Used with the fingerprint worker, whose examples are cheap: more examples in less time.
    fingerprint_examples: int
    fingerprint_seconds: float
    shrink_seconds: float
    replays: int  # on a fresh engine, to measure the reproduction rate
    controls_seconds: float  # for the controls of one case
    counterexamples: int = 1  # of different signatures, that one trial looks for
    requirements: str | None = None  # default of --requirements; None: all


RELEASE = Profile(
    examples=100_000,
    seconds=3600,
    tokens=200_000,
    fingerprint_examples=100_000,
    fingerprint_seconds=1800,
    shrink_seconds=180,
    replays=10,
    controls_seconds=600,
    counterexamples=3,
)
CI = Profile(
    examples=30,
    seconds=600,
    tokens=12_000,
    fingerprint_examples=400,
    fingerprint_seconds=420,
    shrink_seconds=60,
    replays=5,
    controls_seconds=180,
    counterexamples=3,
)
PROFILES = {
    "smoke": Profile(
        examples=8,
        seconds=180,
        tokens=6_000,
        fingerprint_examples=60,
        fingerprint_seconds=230,
        shrink_seconds=15,
        replays=3,
        controls_seconds=90,
        counterexamples=3,
    ),
    "ci": CI,
    "release": RELEASE,
    # The strict form: a frozen list of requirements, every cell, no exclusions. See harness/release.
    "qualify": RELEASE,
    # Everything in one workload, for hours: see harness/session/soak.py. `examples` is the number in one round.
    "soak": msgspec.structs.replace(
        RELEASE,
        examples=100,
        tokens=12_000,
        fingerprint_examples=400,
        fingerprint_seconds=3600,
        requirements="MIXED-1",
    ),
    # For an out-of-tree platform of an engine: see docs/hardware-plugins.md.
    "hardware": msgspec.structs.replace(CI, fingerprint_seconds=600),
    # For harness/power: few examples of every requirement, little time to minimise.
    "wide": Profile(
        examples=40,
        seconds=60,
        tokens=6_000,
        fingerprint_examples=60,
        fingerprint_seconds=30,
        shrink_seconds=2,
        replays=1,
        controls_seconds=10,
    ),
}
SMOKE, QUALIFY, SOAK = "smoke", "qualify", "soak"
FIRST, ONLY, OFF = FINDINGS_CHOICES = ("first", "only", "off")  # what a run does with the known findings of its engine
DIAGNOSE_CHOICES = ("new", "all", "none")
COLD_ENGINE, SAME_ENGINE = "cold-engine", "same-engine"
ORACLES = (COLD_ENGINE, "fresh-engine", SAME_ENGINE, CLOSED_FORM)
FINGERPRINT = "fingerprint"  # the worker that stores digests instead of keys and values
PROPOSED_SUFFIX = ".proposed.toml"  # suffix of files with proposed known issues in the report folder


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that the user chose."""

    engine: str
    report_dir: Path
    json: Path | None = None  # where results.json is written as well
    cells: tuple[str, ...] = ()  # those that will be opened
    profile: str = "smoke"
    oracle: str = "cold-engine"
    worker: str = "model"
    engine_url: str | None = None
    cold_url: str | None = None  # of a second server with prefix caching off
    prefill_apart: bool = False  # the attached server is a router before engines that only compute prompts, and others
    exclusive: bool = False  # no other client uses the attached server
    engine_args: tuple[str, ...] = ()
    model: str | None = None
    adapters: tuple[Path, ...] = ()
    weights: tuple[Path, ...] = ()  # other versions of the model's weights
    weight_policy: str | None = None  # a key of POLICIES; None: what the engine documents
    budget: str | None = None
    known_issues: Path | None = None
    proposals: Path | None = None
    replay: Path | None = None
    prove: Path | None = None  # a report: no example is drawn, and its unfinished cases are proved
    fault: str | None = None
    repairs: tuple[Repair, ...] = ()  # of known findings, planted into every engine
    noise: str | None = None
    shared_dir: Path | None = None
    cache_dir: Path | None = None
    diagnose: str = "new"
    findings: str = FIRST
    calibration: Path | None = None
    allow_not_exercised: bool = False
    least_shown: int | None = None  # the floor of --allow-not-exercised; None: that of the run's size
    allow_inconclusive: bool = False
    guided: bool = False  # also vary workloads that reached rare states of the engine
    command: str = ""
    seed: str = "0"
    shard: str = ""  # as "2/3"
    layers: tuple[Layer, ...] = ()  # of the run as a whole
    # The layers of the run of which this process is one, the fastest first. It adds its events to theirs.
    joined: tuple[Layer, ...] = ()

    @property
    def repaired(self) -> frozenset[str]:
        """Return the findings whose causes its repairs remove from the engines."""
        return frozenset(name for repair in self.repairs for name in repair.mends)

    @property
    def seconds(self) -> float:
        """Return the seconds for drawing examples."""
        budget = parse_duration(self.budget) if self.budget is not None else None
        profile = PROFILES[self.profile]
        return budget or (profile.fingerprint_seconds if self.fingerprint else profile.seconds)

    @property
    def keeps_budget(self) -> bool:
        """Return whether the budget bounds the whole run: that of the user's, and the default one on a server.

        Any other is an estimate for a small model on an idle machine.
        """
        return self.budget is not None or (self.attached and self.profile == SMOKE)

    @property
    def shared(self) -> bool:
        """Return whether other clients may use the engine: its counters and gauges are those of all."""
        return self.attached and not self.exclusive

    @property
    def layer(self) -> str:
        """Return the name of the layer of this process; "" for the process that runs several layers."""
        return "" if len(self.layers) > 1 else layer_of(self.engine, self.worker)

    def is_sample(self, suits: tuple[str, ...]) -> bool:
        """Return whether a few examples of a requirement are enough here: a faster layer draws the rest.

        `suits`: the traits of the cells for which the requirement is.
        """
        faster = itertools.takewhile(lambda layer: layer.name != self.layer, self.joined)
        return bool(self.layer) and any(layer.suits(suits) for layer in faster)

    def waives_at_once(self, suits: tuple[str, ...]) -> bool:
        """Return whether a known issue waives a counterexample here that was not replayed on a fresh engine.

        `suits`: the traits of the cells for which the requirement is. Starting a server takes longer than the sample,
        and another layer replays the same known issue in process.
        """
        return self.profile == SMOKE and self.layer == SERVER_LAYER and self.is_sample(suits)

    @property
    def attached(self) -> bool:
        """Return whether the engine is an attached server, which Coldproof does not manage."""
        return attached(self.engine, self.engine_url) is not None

    @property
    def other_engine(self) -> str | None:
        """Return the name of the engine that gives the cold answers, if it is not the engine under test."""
        return self.oracle.removeprefix(OTHER_ENGINE_PREFIX) if is_other_engine(self.oracle) else None

    @property
    def quick(self) -> bool:
        """Return whether the engine starts in seconds, so that each workload can have its own."""
        return self.engine in ENGINES and ENGINES[self.engine].quick

    @property
    def examples(self) -> int:
        """Return the number of examples after which a test ends if it has all its evidence.

        It is larger where an example is cheap: without a model, or without a network.
        """
        profile = PROFILES[self.profile]
        many = self.fingerprint or (self.engine in ENGINES and ENGINES[self.engine].many_examples)
        return profile.fingerprint_examples if many else profile.examples

    @property
    def fingerprint(self) -> bool:
        """Return whether the engine stores digests instead of keys and values."""
        return self.worker == FINGERPRINT


def parse_duration(text: str) -> float | None:
    """Return `90`, `90s`, `20m` or `2h` in seconds; None for anything else, and for more than a year."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * UNIT_SECONDS[match[2] or "s"] if match else None
    return seconds if seconds is not None and seconds <= LONGEST_SECONDS else None
