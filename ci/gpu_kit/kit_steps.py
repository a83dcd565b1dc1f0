"""Runs the steps of a plan in lanes, each with its own deadline. A step that fails, hangs or is late delays no other.

At its deadline a step gets SIGTERM, at which Coldproof writes its report. What is left after a grace is killed, with
its whole process group. The clock, the sleep and the start of processes are given, so that a test needs no time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from kit_plan import Step

GRACE = 8.0  # seconds between SIGTERM and SIGKILL
RESERVE = 12.0  # seconds at the end of the budget: the grace, and packing
LEAST = 3.0  # a step with less time than this is not started
TICK = 0.25


class State(Enum):
    """How a step ended."""

    DONE = "done"
    FAILED = "failed"  # with another exit code than expected, or it could not be started
    LATE = "late"  # at its deadline, after SIGTERM
    HUNG = "hung"  # it was killed: it did not end after SIGTERM
    SKIPPED = "skipped"  # no time was left, or the kit was interrupted


class Process(Protocol):
    """A running step."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def terminate(self) -> None:
        """Ask the step's process to end."""

    def kill(self) -> None:
        """Kill the step's whole process group. Safe to call after its end."""


@dataclass(kw_only=True)
class Result:
    """What became of a step. `began`: seconds after the start of the kit."""

    name: str
    state: State
    began: float = 0.0
    seconds: float = 0.0
    deadline: float = 0.0
    exit_code: int | None = None
    reason: str = ""


@dataclass(kw_only=True)
class Running:
    """A step that has been started. `asked`: when it got SIGTERM."""

    step: Step
    process: Process
    began: float
    deadline: float
    asked: float | None = None


@dataclass(kw_only=True)
class Lanes:
    """Runs steps until all have ended. `end`: of the budget, on the clock of `now`.

    `start(step, seconds)` starts a step that has so many seconds. `ended` is called after each end, `say` with a line.
    """

    now: Callable[[], float]
    sleep: Callable[[float], None]
    start: Callable[[Step, float], Process]
    ended: Callable[[Step, Result], None]
    say: Callable[[str], None]
    began: float
    end: float
    results: dict[str, Result] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps to the end of the last one. At an interrupt, end the running ones and skip the others."""
        waiting = list(steps)
        try:
            while waiting or self.running:
                self.watch()
                waiting = self.begin(waiting, {step.name for step in steps})
                if self.running:
                    self.sleep(TICK)
        except KeyboardInterrupt:
            self.interrupt(waiting)

    def begin(self, waiting: list[Step], known: set[str]) -> list[Step]:
        """Start what can be started, and return what still waits. `known`: the steps of this run."""
        left = []
        busy = {one.step.lane for one in self.running.values()}
        for step in waiting:
            held = any(name in known and name not in self.results for name in step.after)
            if step.lane in busy or held:
                left.append(step)
                busy.add(step.lane)
            elif self.launch(step):
                busy.add(step.lane)
        return left

    def launch(self, step: Step) -> bool:
        """Start a step and return whether it runs."""
        at = self.now()
        seconds = min(step.seconds, self.end - RESERVE - at)
        if seconds < LEAST:
            self.finish(step, Result(name=step.name, state=State.SKIPPED, began=at - self.began, reason="no time left"))
            return False
        try:
            process = self.start(step, seconds)
        except Exception as problem:  # noqa: BLE001 - whatever is wrong with one step costs only this step
            why = f"{type(problem).__name__}: {problem}"
            self.finish(step, Result(name=step.name, state=State.FAILED, began=at - self.began, reason=why))
            return False
        self.running[step.name] = Running(step=step, process=process, began=at, deadline=at + seconds)
        self.say(f"{step.name} started in lane {step.lane}, at most {seconds:.0f} s")
        return True

    def watch(self) -> None:
        """Record the steps that have ended, and end those whose time is over."""
        for one in list(self.running.values()):
            code, at = one.process.poll(), self.now()
            if code is not None:
                self.conclude(one, code)
            elif one.asked is None and at >= one.deadline:
                one.asked = at
                one.process.terminate()
            elif one.asked is not None and at >= one.asked + GRACE:
                one.process.kill()
                self.conclude(one, None)

    def conclude(self, one: Running, code: int | None) -> None:
        """Record the end of a step, and kill what it left behind."""
        one.process.kill()
        del self.running[one.step.name]
        state = State.HUNG if code is None else State.LATE if one.asked is not None else State.FAILED
        if code in one.step.expect and one.asked is None:
            state = State.DONE
        seconds = self.now() - one.began
        result = Result(
            name=one.step.name,
            state=state,
            began=one.began - self.began,
            seconds=seconds,
            deadline=one.deadline - one.began,
            exit_code=code,
        )
        self.finish(one.step, result)

    def finish(self, step: Step, result: Result) -> None:
        """Record a result, report it and hand it on."""
        self.results[step.name] = result
        code = "" if result.exit_code is None else f", exit code {result.exit_code}"
        why = f": {result.reason}" if result.reason else ""
        self.say(f"{step.name} {result.state.value} after {result.seconds:.1f} s{code}{why}")
        self.ended(step, result)

    def interrupt(self, waiting: Sequence[Step]) -> None:
        """End the running steps, at most after the grace, and skip the others."""
        for one in self.running.values():
            one.asked = self.now()
            one.process.terminate()
        while self.running:
            self.watch()
            self.sleep(TICK)
        for step in waiting:
            if step.name not in self.results:
                self.finish(step, Result(name=step.name, state=State.SKIPPED, reason="interrupted"))


class StepProcess:
    """A process in a session of its own, whose output goes to a file."""

    def __init__(self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        with (folder / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the process itself: Coldproof then ends its engines and writes its report."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process group and wait for the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
