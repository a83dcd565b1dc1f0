"""The command line's options as one frozen value, checked before anything expensive starts."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from adapters.noise import parse
from harness.engines.kinds import KINDS, attached
from harness.faults.catalogue import FAULTS
from harness.oracle.other import ACROSS, is_across

UNITS = {"s": 1, "m": 60, "h": 3600}


class UsageError(Exception):
    """The command line asks for something that cannot be; the message says what to do. Exit code 4."""


class Profile(msgspec.Struct, frozen=True):
    """How much is generated, where and for how long, and how long one counterexample may be minimised."""

    examples: int  # at most, for each test
    seconds: float  # for drawing examples, over all tests
    tokens: int  # at most, in one workload
    cells: tuple[str, ...]
    # With the worker that has no model an example is cheap: there are more of them, and more cells, in less time.
    fingerprint_cells: tuple[str, ...]
    fingerprint_examples: int
    fingerprint_seconds: float
    shrink_seconds: float
    replays: int  # on a fresh engine, to state a reproduction rate
    controls_seconds: float  # for the controls of one case
    requirements: str | None = None  # those that are tested unless others are asked for; None: all


RELEASE = Profile(
    examples=100_000,
    seconds=3600,
    tokens=200_000,
    cells=(),
    fingerprint_cells=(),
    fingerprint_examples=100_000,
    fingerprint_seconds=1800,
    shrink_seconds=180,
    replays=10,
    controls_seconds=600,
)
PROFILES = {
    "smoke": Profile(
        examples=8,
        seconds=180,
        tokens=6_000,
        cells=("default", "tight"),
        fingerprint_cells=("default", "tight", "groups-window"),
        fingerprint_examples=60,
        fingerprint_seconds=45,
        shrink_seconds=15,
        replays=3,
        controls_seconds=90,
    ),
    "ci": Profile(
        examples=30,
        seconds=600,
        tokens=12_000,
        cells=("default", "tight", "tight-priority"),
        fingerprint_cells=(
            "default",
            "tight",
            "tight-priority",
            "small-chunks",
            "groups-window",
            "groups-window-tight",
            "groups-five",
            "groups-five-long",
            "groups-state",
            "events",
            "events-tight",
            "events-window",
            "tier-offload",
            "tier-failing",
        ),
        fingerprint_examples=400,
        fingerprint_seconds=420,
        shrink_seconds=60,
        replays=5,
        controls_seconds=180,
    ),
    "release": RELEASE,
    # The release form: a frozen list of requirements, every cell, nothing left out; see harness/qualify.
    "qualify": RELEASE,
    # Everything at once, for hours: see harness/soak.py. `examples` is one round.
    "soak": Profile(
        examples=100,
        seconds=3600,
        tokens=12_000,
        cells=("tight",),
        fingerprint_cells=("tight",),
        fingerprint_examples=400,
        fingerprint_seconds=3600,
        shrink_seconds=180,
        replays=10,
        controls_seconds=600,
        requirements="MIXED-1",
    ),
    # For harness.power: every requirement a little, and little time for making counterexamples small.
    "wide": Profile(
        examples=40,
        seconds=60,
        tokens=6_000,
        cells=("default", "tight"),
        fingerprint_cells=("default", "tight"),
        fingerprint_examples=60,
        fingerprint_seconds=30,
        shrink_seconds=2,
        replays=1,
        controls_seconds=10,
    ),
}
QUALIFY, SOAK = "qualify", "soak"
DIAGNOSED = ("new", "all", "none")
ORACLES = ("cold-engine", "fresh-engine", "same-engine", "closed-form")
WORKERS = ("model", "fingerprint")
ENGINES = ("vllm", "vllm-inproc", "endpoint", *KINDS)
STARTED = ("vllm", "vllm-inproc", *(name for name, kind in KINDS.items() if kind.start is not None))  # by Coldproof
PROPOSED = ".proposed.toml"  # how the names of proposed known issues end in the report folder


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the user chose."""

    engine: str
    report_dir: Path
    cells: tuple[str, ...] = ("default",)
    profile: str = "smoke"
    oracle: str = "cold-engine"
    worker: str = "model"
    engine_url: str | None = None
    engine_args: tuple[str, ...] = ()
    model: str | None = None
    adapters: tuple[Path, ...] = ()
    budget: str | None = None
    known_issues: Path | None = None
    proposals: Path | None = None
    replay: Path | None = None
    fault: str | None = None
    noise: str | None = None
    shared_dir: Path | None = None
    diagnose: str = "new"
    calibration: Path | None = None
    allow_not_exercised: bool = False
    allow_inconclusive: bool = False
    command: str = ""
    seed: str = "0"
    shard: str = ""  # as "2/3"

    @property
    def seconds(self) -> float:
        """The budget for drawing examples."""
        given = seconds_of(self.budget) if self.budget is not None else None
        profile = PROFILES[self.profile]
        return given or (profile.fingerprint_seconds if self.fingerprint else profile.seconds)

    @property
    def attached(self) -> bool:
        """Whether the engine is somebody else's process."""
        return attached(self.engine, self.engine_url) is not None

    @property
    def other_engine(self) -> str | None:
        """The engine whose cold answers count, where it is another one than the engine under test."""
        return self.oracle.removeprefix(ACROSS) if is_across(self.oracle) else None

    @property
    def quick(self) -> bool:
        """Whether an engine starts in seconds, so that each run may have its own."""
        return self.engine == "vllm-inproc" or (self.engine in KINDS and KINDS[self.engine].quick)

    @property
    def examples(self) -> int:
        """For each test, where they show what they must. Without a model, or over no network, one costs little."""
        profile = PROFILES[self.profile]
        return profile.fingerprint_examples if self.fingerprint or self.engine in KINDS else profile.examples

    @property
    def fingerprint(self) -> bool:
        """Whether the engine keeps digests instead of keys and values."""
        return self.worker == "fingerprint"

    def check(self) -> None:
        """Raise UsageError for a combination that cannot work."""
        if self.engine not in ENGINES:
            raise UsageError(f"unknown engine {self.engine!r}: choose one of {', '.join(ENGINES)}")
        if self.attached and self.engine_url is None:
            raise UsageError(f"--engine {self.engine} needs --engine-url http://HOST:PORT")
        if self.engine_url is not None and not self.attached:
            raise UsageError(
                f"--engine {self.engine} spawns its own server: leave out --engine-url, or say --engine endpoint"
            )
        if self.attached and self.engine_args:
            raise UsageError(
                "--engine-args are for an engine that Coldproof spawns: give them to your own server instead"
            )
        self.check_oracle()
        if self.profile not in PROFILES:
            raise UsageError(f"unknown profile {self.profile!r}: choose one of {', '.join(PROFILES)}")
        if self.budget is not None and not seconds_of(self.budget):
            raise UsageError(f"--budget {self.budget!r} is no time: write it as 90s, 20m or 2h")
        if self.calibration is not None and not self.calibration.is_file():
            raise UsageError(f"no file {self.calibration}: --calibration wants the results.json of an earlier run")
        if self.diagnose not in DIAGNOSED:
            raise UsageError(f"--diagnose {self.diagnose!r}: choose one of {', '.join(DIAGNOSED)}")
        if self.worker not in WORKERS:
            raise UsageError(f"unknown worker {self.worker!r}: choose one of {', '.join(WORKERS)}")
        if self.fault is not None and self.attached:
            raise UsageError("--fault is for an engine that Coldproof spawns: leave out --engine-url")
        if self.fault is not None and self.fault not in FAULTS:
            raise UsageError(f"unknown fault {self.fault!r}: --fault list prints them")
        if self.fingerprint and self.attached:
            raise UsageError("--worker fingerprint is for an engine that Coldproof spawns: leave out --engine-url")
        if self.engine in KINDS and (self.fingerprint or self.fault is not None):
            raise UsageError(f"--worker fingerprint and --fault are for vLLM: leave out --engine {self.engine}")
        self.check_noise()
        if len(self.adapters) == 1:
            raise UsageError("one --adapter cannot be told from itself: give at least two that answer differently")
        self.check_proposals()

    def check_noise(self) -> None:
        """Raise UsageError for noise that cannot be, or not in this engine."""
        if self.noise is None:
            return
        if self.engine not in ("vllm", "vllm-inproc"):
            raise UsageError(f"--noise is put into a vLLM that Coldproof starts: leave out --engine {self.engine}")
        if self.oracle == "closed-form":
            raise UsageError("--noise moves every score, and --oracle closed-form knows of none: leave it out")
        try:
            parse(self.noise)
        except ValueError as problem:
            raise UsageError(f"--noise {problem}") from problem

    def check_oracle(self) -> None:
        """Raise UsageError for an oracle that there is not, or not for this engine."""
        if self.other_engine is not None:
            self.check_other_engine(self.other_engine)
        elif self.oracle not in ORACLES:
            raise UsageError(f"unknown oracle {self.oracle!r}: choose one of {', '.join(ORACLES)} or {ACROSS}NAME")
        elif self.attached and self.oracle != "same-engine":
            raise UsageError(f"--oracle {self.oracle} needs an engine that Coldproof spawns: use --oracle same-engine")
        elif self.oracle == "closed-form" and not self.fingerprint:
            raise UsageError(
                "--oracle closed-form computes what the fingerprint worker answers: add --worker fingerprint"
            )

    def check_other_engine(self, name: str) -> None:
        """Raise UsageError where another engine cannot be asked."""
        if name not in STARTED:
            raise UsageError(
                f"--oracle {self.oracle}: there is no such engine that Coldproof starts; choose one of "
                f"{', '.join(ACROSS + started for started in STARTED)}"
            )
        if self.fingerprint:
            raise UsageError(
                f"--oracle {self.oracle} wants a model that both engines serve, and --worker fingerprint has none"
            )
        if self.attached and self.model is None:
            raise UsageError(
                f"--oracle {self.oracle} has to serve what your server serves: add --model PATH, and --adapter PATH "
                "for adapters of your own"
            )

    def check_proposals(self) -> None:
        """Raise UsageError where this run would write over somebody's file, or remove the known issues in use."""
        if self.known_issues is not None and self.is_removed(self.known_issues):
            raise UsageError(
                f"--known-issues {self.known_issues} is in --report-dir, where a run removes an earlier one's "
                "proposals: copy what you accept into a file of your own"
            )
        if self.proposals is None:
            return
        if self.proposals.suffix != ".toml":
            raise UsageError(
                f"--update-known-issues {self.proposals}: proposals go into a new file that ends in .toml; to have "
                "them in --report-dir write the option last, with no file"
            )
        folder = self.proposals.parent
        if not folder.is_dir() and folder.resolve() != self.report_dir.resolve():
            raise UsageError(f"--update-known-issues {self.proposals}: there is no folder {folder}")
        if self.proposals.exists() and not self.is_removed(self.proposals):
            raise UsageError(
                f"--update-known-issues {self.proposals}: there is such a file, and none is ever written over: name "
                "another"
            )

    def is_removed(self, path: Path) -> bool:
        """Whether a run takes a file for an earlier run's proposals and removes it."""
        return path.name.endswith(PROPOSED) and path.resolve().parent == self.report_dir.resolve()


def seconds_of(text: str) -> float | None:
    """`90`, `90s`, `20m` or `2h` in seconds; None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    return float(found[1]) * UNITS[found[2] or "s"] if found else None
