"""Units of work: one cell with one seed of a run, on one kind of machine. Each is a `pytest suites` of its own.

A unit's id says what it is and stays the same from one start of the fleet to the next; its digest also says by which
sources and known issues: what is done is done as long as the digest is the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from harness.fleet.matrix import Machine, Matrix, Run, known_issues, once
from harness.qualify.record import digest_of

CHOSEN = "profile"  # in place of a cell's name, where the profile says which


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suites. `cell`: "" for the profile's; `shard`: "" for all of it; `waivers`: where they lie."""

    machine: Machine
    run: Run
    cell: str
    seed: int
    shard: str
    waivers: Path | None

    @property
    def id(self) -> str:
        """Also the name of its folder."""
        part = f"-{self.shard.replace('/', 'of')}" if self.shard else ""
        return f"{self.run.label}-{self.machine.name}-{self.cell or CHOSEN}-seed{self.seed}{part}"

    def column(self, cell: str) -> str:
        """What a cell of its run is called in the report of the whole."""
        return f"{self.machine.name} / {self.run.label} / {cell}"

    def digest(self, sources: str) -> str:
        """Of all that its verdicts depend on and that is ours to say."""
        waivers = digest_of(self.waivers) if self.waivers is not None else ""
        told = (self.machine, self.run, self.cell, self.seed, self.shard, waivers, sources)
        return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()

    def words(self) -> list[str]:
        """The arguments of `pytest suites`, but for what depends on where its node has its files."""
        run = self.run
        given = {
            "--engine": run.engine,
            "--engine-url": run.engine_url,
            "--cells": self.cell,
            "--requirements": ",".join(run.requirements),
            "--profile": run.profile,
            "--budget": run.budget,
            "--worker": run.worker,
            "--oracle": run.oracle,
            "--hypothesis-seed": str(self.seed),
            "--shard": self.shard,
        }
        return [*(f"{name}={value}" for name, value in given.items() if value), *run.options]


def units_of(matrix: Matrix, folder: Path) -> list[Unit]:
    """All units, in the order of the runs, then machines, cells and seeds. `folder`: the matrix file's.

    Raises UsageError where two have one id: a name with dashes in it can make that.
    """
    machines = {machine.name: machine for machine in matrix.machine}
    units = [
        Unit(
            machine=machines[name],
            run=run,
            cell=cell,
            seed=seed,
            shard=f"{number}/{run.shards}" if run.shards > 1 else "",
            waivers=known_issues(run, folder),
        )
        for run in matrix.run
        for name in run.machines
        for cell in run.cells or ("",)
        for seed in run.seeds
        for number in range(1, run.shards + 1)
    ]
    once("unit", (unit.id for unit in units))
    return units
