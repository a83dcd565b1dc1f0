"""Units of work: one cell and one seed of a run, on one kind of machine. Each unit is a separate `pytest suites`.

A unit's id describes it and is the same at every start of the fleet. Its digest also covers the sources and the known
issues: a finished unit is not run again while its digest is the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from coldproof.harness.fleet.matrix import Machine, Matrix, MatrixRun, known_issues_path, unique_names
from coldproof.harness.release.run.record import digest_of

PROFILE_CELLS = "profile"  # replaces the cell's name if the profile chooses the cells


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suites. `cell`: "" for the profile's cells; `shard`: "" for a whole run; `waivers`: their file."""

    machine: Machine
    run: MatrixRun
    cell: str
    seed: int
    shard: str
    waivers: Path | None

    @property
    def id(self) -> str:
        """The id, which is also the name of the unit's folder."""
        part = f"-{self.shard.replace('/', 'of')}" if self.shard else ""
        return f"{self.run.label}-{self.machine.name}-{self.cell or PROFILE_CELLS}-seed{self.seed}{part}"

    def column(self, cell: str) -> str:
        """Return the name of a cell's column in the merged report."""
        return f"{self.machine.name} / {self.run.label} / {cell}"

    def digest(self, sources: str) -> str:
        """Return the digest of everything that defines the unit: machine, run, cell, seed, shard, waivers, sources."""
        waivers = digest_of(self.waivers) if self.waivers is not None else ""
        definition = (self.machine, self.run, self.cell, self.seed, self.shard, waivers, sources)
        return hashlib.sha256(msgspec.json.encode(definition, order="deterministic")).hexdigest()

    def words(self) -> list[str]:
        """Return the arguments of `pytest suites` that do not depend on the node's folders."""
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
    """Return all units, ordered by run, machine, cell, seed and shard. `folder` is the folder of the matrix file.

    Raises UsageError if two units have the same id, which names with dashes can cause.
    """
    machines = {machine.name: machine for machine in matrix.machine}
    units = [
        Unit(
            machine=machines[name],
            run=run,
            cell=cell,
            seed=seed,
            shard=f"{number}/{run.shards}" if run.shards > 1 else "",
            waivers=known_issues_path(run, folder),
        )
        for run in matrix.run
        for name in run.machines
        for cell in run.cells or ("",)
        for seed in run.seeds
        for number in range(1, run.shards + 1)
    ]
    unique_names("unit", (unit.id for unit in units))
    return units
