"""vLLM's engine core in this process, stepped by hand.

Through a server, arrivals, preemptions and aborts fall where threads and sockets let them fall. Here a burst is a plain
loop over engine steps: each arrival and each abort falls on the step that it is due at, and a run repeats exactly. Time
is counted in steps, too; no wall clock reaches what is returned.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineShape,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Support,
)
from adapters.inproc_adapters import AdapterNames
from adapters.inproc_request import STEP_MS, Live, engine_input, sampling, seconds
from adapters.inproc_setup import LOCK, LOGGER, Built, build, flags, logged_to, take_down, vllm_module
from adapters.inproc_support import cache_settings, capabilities, chat_ids, known_seed, shape
from adapters.kv_events import Published, hash_rule
from adapters.probes import NO_SWITCH
from adapters.process import TAIL_LINES
from adapters.provenance import WrongRead
from adapters.redact import redacted
from adapters.serving import served_alone
from adapters.vllm import HASH_SEED, VllmOptions, server_command, shown_environment, words

SERVER_PORT = 8000

DRAIN_STEPS = 100  # a connector that still has work then does not come to an end


def start(options: VllmOptions) -> InprocEngine:
    """Start an engine in this process: ten seconds for the first, one or two for any other. Raises EngineStartError."""
    built = build(options)
    try:
        return InprocEngine(options, built)
    except BaseException:
        take_down(built)
        raise


class InprocEngine:
    """An engine that runs only while it is served from, one burst at a time."""

    name = "vllm-inproc"

    def __init__(self, options: VllmOptions, built: Built) -> None:
        self.options = options
        self._built: Built | None = built
        self._death = ""  # why it is gone
        self._steps = 0
        self._live: dict[str, Live] = {}
        self._past_preemptions = 0
        self._numbers = itertools.count(1)
        self._turn = threading.RLock()
        with self._entered() as held:
            settings = held.engine.vllm_config
            self._defaults = held.engine.model_config.get_diff_sampling_param()  # read from a file at each call
            self._base_model: str = settings.model_config.served_model_name
            self._version: str = vllm_module("version").__version__
            self._shape = shape(held)
            self._capabilities = capabilities(held, self._version, digests=options.topology is not None)
            self._cache_settings = cache_settings(settings)
            self._adapters = AdapterNames(held.engine, self._base_model)

    @property
    def version(self) -> str | None:
        """The package's."""
        return self._version

    @property
    def base_model(self) -> str:
        """As the server would name it."""
        return self._base_model

    @property
    def shape(self) -> EngineShape:
        """As configured once it had started."""
        return self._shape

    @property
    def config(self) -> Mapping[str, str]:
        """The flags, which are the server's, and the cache's settings."""
        alike = redacted(shlex.join(server_command(self.options, port=SERVER_PORT)))
        return {
            "engine": "vLLM's engine core, stepped in this process",
            "flags": redacted(shlex.join(flags(self.options))),
            "command": alike,  # of the server that is configured alike
            "environment": words(shown_environment()),
            **self._cache_settings,
        }

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """By the engine core's interface and the configuration."""
        return self._capabilities

    def clock(self) -> float:
        """Steps so far, as seconds."""
        return seconds(self._steps)

    def complete(self, request: CompletionRequest) -> Completion:
        """One request, alone."""
        return served_alone(self.serve, request)

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all are over; `between` comes after each step. An offset is rounded up to a whole step."""
        with self._turn:
            began, live, served = self._steps, dict[int, Live](), dict[int, Served]()
            waiting = dict(sorted(enumerate(arrivals), key=lambda item: item[1].offset_ms))
            try:
                while waiting or live:
                    due = [n for n in waiting if (self._steps - began) * STEP_MS >= waiting[n].offset_ms]
                    try:
                        with self._entered() as held:
                            for number in due:
                                self._send(held, number, waiting.pop(number).request, live, served)
                            self._hang_up(held, live)
                            self._step(held)
                            self._hang_up(held, live)
                    except EngineDied as death:
                        served |= {number: self._over(death, live.get(number)) for number in (*waiting, *live)}
                        break
                    for number, one in list(live.items()):
                        if one.count > one.told:
                            one.told = one.count
                            on_token(number, one.count)
                        if one.ended is not None:
                            served[number] = self._over(one.result(), live.pop(number))
                    between()
                self._drain()
            finally:
                self._abandon(live)
            return [served[number] for number in range(len(arrivals))]

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """What the server's chat entry point makes of messages. Raises RequestRefused where it makes nothing."""
        with self._entered() as held, refusals():
            return chat_ids(held, messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace, between two steps."""
        with self._entered():
            self._adapters.load(name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        """There is no such switch. Raises RequestRefused."""
        raise RequestRefused(501, f"{name}, {path}: {NO_SWITCH}")

    def unload_adapter(self, name: str) -> None:
        """Forget a name."""
        with self._entered():
            self._adapters.unload(name)

    def reset_cache(self) -> bool:
        """Whether the cache could be emptied: not while requests hold blocks."""
        with self._entered() as held:
            return bool(held.engine.reset_prefix_cache())

    def metrics(self) -> Metrics:
        """Counters as the server publishes them; preemptions as the scheduler counts them, which misses none."""
        with self._entered() as held:
            running, waiting = held.core.scheduler.get_request_counts()
            return Metrics(
                queried_tokens=held.counts.queried_tokens,
                hit_tokens=held.counts.hit_tokens,
                **self._beyond_the_pool(held),
                preemptions=self._past_preemptions + sum(one.preemptions for one in self._live.values()),
                running=running,
                waiting=waiting,
                pool_usage=held.core.scheduler.get_kv_cache_usage(),
            )

    def take_events(self) -> Published:
        """What the scheduler has published after its steps."""
        with self._entered() as held:
            if held.mail is None:
                return Published()
            seed = os.environ.get(HASH_SEED) or known_seed(self._cache_settings)
            return Published(batches=held.mail.take(), rule=hash_rule(self._cache_settings, seed))

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """What the fingerprint worker has noted."""
        if self.options.topology is None:
            return ()
        with self._entered() as held:
            (rows,) = held.engine.collective_rpc("take_wrong_reads")
        return tuple(msgspec.convert(row, WrongRead) for row in rows)

    def _beyond_the_pool(self, held: Built) -> dict[str, int]:
        """What a second tier gave; unknown to an engine that has none."""
        if not self._shape.second_tier:
            return {}
        names = ("external_queried_tokens", "external_hit_tokens", "resumed_hit_tokens", "failed_loads")
        return {name: getattr(held.counts, name) for name in names}

    def alive(self) -> bool:
        """Until it is stopped or a step fails."""
        return self._built is not None and not self._death

    def log_tail(self) -> str:
        """The end of what vLLM logged for this engine."""
        try:
            text = self.options.log.read_text(errors="replace")
        except OSError as problem:
            return f"(log unreadable: {problem})"
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def stop(self) -> None:
        """Take it down. From within `between`, the burst ends with EngineDied."""
        with LOCK:
            built, self._built = self._built, None
            self._death = self._death or "the engine was stopped"
            self._live.clear()
            if built is not None:
                take_down(built)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Built]:
        """Hold what touches vLLM's global state. Raises EngineDied when there is no engine any more."""
        with LOCK:
            if self._built is None or self._death:
                raise EngineDied(self._death)
            with logged_to(self._built.log):
                yield self._built

    def _send(
        self, held: Built, number: int, request: CompletionRequest, live: dict[int, Live], served: dict[int, Served]
    ) -> None:
        """Add a request to the engine, or note why the server would refuse it."""
        number_of_all = next(self._numbers)
        name = f"{number_of_all:08d}{request.tag}"
        try:
            adapter = self._adapters.lora_request(request.model)
            prompt = request.prompt if request.messages is None else self.render(request.messages)
            with refusals():
                inner = held.engine.add_request(
                    name,
                    engine_input(held.engine, request, prompt),
                    sampling(self._defaults, request),
                    arrival_time=float(number_of_all),  # only the order of sending counts: it breaks ties in priority
                    lora_request=adapter,
                    priority=request.priority,
                )
        except RequestRefused as refusal:
            held.engine.abort_request([name])  # it may have come half the way
            served[number] = self._over(refusal, None)
            return
        one = Live(request, name=name, inner=inner, scheduled=held.core.scheduler.requests, step=self._steps)
        one.wait_for_grammar()
        live[number] = self._live[name] = one

    def _step(self, held: Built) -> None:
        """One step of the engine. Raises EngineDied when it fails."""
        try:
            outputs = held.engine.step()
        except Exception as problem:
            LOGGER.exception("a step failed")
            self._death = f"a step of the engine failed: {type(problem).__name__}: {problem}"
            raise EngineDied(self._death) from problem
        self._steps += 1
        if held.mail is not None:
            held.mail.stamp(self.clock())
        for one in self._live.values():
            one.note_preemptions(self._steps)
        for output in outputs:
            one = self._live[output.request_id]
            one.take(output, self._steps)
            if one.ended is not None:
                self._forget(one)

    def _drain(self) -> None:
        """Step on while a connector has work left, as a server does when nobody asks anything any more.

        An engine that was stopped, or fails here, has answered all the same: the next call says that it is gone.
        """
        for _ in range(DRAIN_STEPS):
            with contextlib.suppress(EngineDied), self._entered() as held:
                scheduler = held.core.scheduler
                if scheduler.connector is not None and scheduler.has_requests():
                    self._step(held)
                    continue
            return

    def _hang_up(self, held: Built, live: dict[int, Live]) -> None:
        """Abort the requests whose clients hang up now."""
        for one in live.values():
            if one.hangs_up(self._steps):
                one.aborted, one.ended = one.stage(), self._steps
                self._abort(held, one)

    def _abort(self, held: Built, one: Live) -> None:
        """Take a request out of the engine, one answer after the other: together they would go in a random order."""
        for name in one.inner_names:
            held.engine.abort_request([name], internal=True)
        self._forget(one)

    def _forget(self, one: Live) -> None:
        self._past_preemptions += one.preemptions
        del self._live[one.name]

    def _abandon(self, live: dict[int, Live]) -> None:
        """Leave no request behind when a burst ends early, such as by an exception out of `between`."""
        if self.alive():
            with self._entered() as held:
                for one in live.values():
                    self._abort(held, one)

    def _over(self, result: Completion | EngineError, one: Live | None) -> Served:
        """What became of a request, now or when it ended; one that never came to the engine was sent now."""
        sent = self._steps if one is None else one.step
        ended = self._steps if one is None or one.ended is None else one.ended
        return Served(seconds(sent), seconds(ended), result)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What vLLM raises for a request is what the server answers: its client's fault (400), or its own (500)."""
    try:
        yield
    except Exception as problem:
        known = getattr(vllm_module("exceptions"), "VLLMClientError", ValueError)
        faulty = isinstance(problem, (known, ValueError, TypeError, OverflowError))
        raise RequestRefused(400 if faulty else 500, str(problem)) from problem
