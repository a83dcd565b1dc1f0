"""Runs replays in forks of a process that has imported the engine, because an import takes longer than a replay."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.forked import VARIABLE, ForkedProcess, ForkServerError, fork_server, import_ahead
from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.registry import ENGINES
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.session.causes import replay_job
from coldproof.harness.session.causes.replay_job import ReplayEnd, ReplayJob, write_job
from coldproof.harness.session.layers.processes import preloads
from coldproof.reports.format.text import one_line

END_SECONDS = 5.0  # for the end of a replay that took too long


class ForkedReplays:
    """Runs one replay at a time. `starting`: counts the time in which an engine is imported."""

    def __init__(self, starting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> None:
        self.starting = starting
        self.process: ForkedProcess | None = None
        self.ended = False
        self.seconds = 0.0  # of all replays, without the import of the engine

    def prepare(self, engine: str) -> None:
        """Begin to import an engine (a name of the registry) for later replays, beside what else the run does."""
        with contextlib.suppress(OSError):
            import_ahead(*preloads_of(engine))

    def run(self, job: ReplayJob, *, seconds: float) -> ReplayEnd:
        """Run a replay for at most `seconds`, and return how it ended."""
        scratch = ScratchFolder()
        job_file, end_file, log = (scratch.path / name for name in ("job.json", "end.json", "log"))
        try:
            own = msgspec.structs.replace(job.options, report_dir=scratch.path, json=None)  # for logs of its engines
            write_job(job_file, msgspec.structs.replace(job, options=own))
            with self.starting():
                address = fork_server(*preloads_of(job.options.engine))
            if self.ended:
                return ReplayEnd(ReplayResult.NOT_RUN, "the run is ending")
            began = time.monotonic()
            with log.open("wb") as output:
                self.process = ForkedProcess(
                    address,
                    f"{replay_job.__name__}:{replay_job.main.__name__}",
                    (str(job_file), str(end_file)),
                    environment={**current_environment(), VARIABLE: address},
                    output=output,
                    guarded=True,
                )
            try:
                self.process.wait(seconds)
            finally:
                self.seconds += time.monotonic() - began
            return msgspec.json.decode(end_file.read_bytes(), type=ReplayEnd)
        except subprocess.TimeoutExpired:
            return ReplayEnd(ReplayResult.NOT_RUN, f"it did not end within {seconds:.0f} s", broken=True)
        except ForkServerError as problem:
            return ReplayEnd(ReplayResult.NOT_RUN, one_line(str(problem)), broken=True)
        except (OSError, msgspec.DecodeError):
            said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            return ReplayEnd(ReplayResult.NOT_RUN, one_line(said[-1]) if said else "its process ended", broken=True)
        finally:
            self.end_process()
            scratch.remove()

    def stop(self) -> None:
        """End the replay that runs, and let no other one begin."""
        self.ended = True
        self.end_process()

    def end_process(self) -> None:
        """End the process of a replay, if it runs. Its guard ends what it has started."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()


def preloads_of(engine: str) -> tuple[str, ...]:
    """Return what the process imports from which replays on an engine are forked."""
    return replay_job.__name__, *preloads([ENGINES[engine]])
