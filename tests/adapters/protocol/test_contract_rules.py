"""The contract detects adapters that each break one rule, and names that rule."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract import rules, subjects
from contract import test_contract_adapters as adapters
from contract import test_contract_answers as answers
from contract import test_contract_cache as cache
from contract import test_contract_serving as serving
from contract import test_contract_statements as statements
from contract import test_contract_stopping as stopping

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Engine, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.kv_events import EventBatch, Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Stage
from coldproof.harness.execution.models.lora import digest_of
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine

Change = Callable[[CompletionRequest, Completion], Completion]
OnToken = Callable[[int, int], None]


class Broken(ScriptedEngine):
    """The scripted engine with a defect in its adapter."""

    def __init__(
        self,
        change: Change = lambda _request, answer: answer,
        *,
        without: tuple[Capability, ...] = (),
        claims: tuple[Capability, ...] = (),
        said: tuple[tuple[str, Any], ...] = (),
        shape: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        """Change each answer by `change`, remove or add capabilities, and replace other statements of the engine."""
        super().__init__()
        self.change = change
        self.capabilities |= {capability: Support(False, "left out") for capability in without}
        self.capabilities |= {capability: Support(True, "claimed") for capability in claims}
        self.shape = msgspec.structs.replace(self.shape, **dict(shape))
        for name, value in said:
            setattr(self, name, value)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        return self.change(request, super().send(self.understood(request), on_token))

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        """Return the part of a request that reaches the engine."""
        return request

    def serve(self, arrivals: Sequence[Arrival], on_token: OnToken, between: Callable[[], None]) -> list[Served]:
        return self.reported(super().serve(arrivals, on_token, between))

    def reported(self, served: list[Served]) -> list[Served]:
        """Return the results that the adapter reports."""
        return served


def replaced(**fields: Any) -> Change:
    """Return a change that always gives the same values to some fields of each answer."""
    return lambda _request, answer: msgspec.structs.replace(answer, **fields)


def each_token(**fields: Any) -> Change:
    """Return a change that always gives the same values to some fields of each token."""
    return lambda _request, answer: msgspec.structs.replace(
        answer, tokens=tuple(msgspec.structs.replace(token, **fields) for token in answer.tokens)
    )


def shorter(_request: CompletionRequest, answer: Completion) -> Completion:
    """Remove the last token."""
    return msgspec.structs.replace(answer, tokens=answer.tokens[:-1])


def whole_prompt(request: CompletionRequest, answer: Completion) -> Completion:
    """Report that the whole prompt was hit if anything was."""
    return msgspec.structs.replace(answer, cached_tokens=len(request.prompt) if answer.cached_tokens else 0)


def sampled(_request: CompletionRequest, answer: Completion) -> Completion:
    """Use the clock as the seed."""
    return each_token(id=33 + time.monotonic_ns() // 64 % 9999)(_request, answer)


def other_with_scores(request: CompletionRequest, answer: Completion) -> Completion:
    """Give another answer if scores are requested."""
    return each_token(id=7)(request, answer) if request.options.logprobs else answer


def gone_from_the_queue(request: CompletionRequest, answer: Completion) -> Completion:
    """Report that an aborted request never left the queue."""
    gone = {"tokens": (), "finish_reason": None, "cached_tokens": None, "aborted": Stage.QUEUED}
    return msgspec.structs.replace(answer, **gone) if request.abort else answer


class AcceptsUnknownModels(Broken):
    """An adapter that takes an unknown model for the base model."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        known = request.model in self.contents
        return request if known else msgspec.structs.replace(request, model=self.base_model)


class CutsPrompts(Broken):
    """An adapter that removes the beginning of a prompt that is too long."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        room = self.shape.max_model_tokens - request.max_tokens
        return msgspec.structs.replace(request, prompt=request.prompt[-room:])


class DropsTheLast(Broken):
    """An adapter that always sends the same last token of a prompt."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        return msgspec.structs.replace(request, prompt=(*request.prompt[:-1], 33))


class OneAtATime(Broken):
    """An adapter that stores all requests in one attribute, which concurrent requests overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.together = threading.Barrier(4)  # of the test

    def complete(self, request: CompletionRequest) -> Completion:
        self.request = request
        self.together.wait()
        return super().complete(self.request)


class DropsSalts(Broken):
    """An adapter that does not send the salt."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        return msgspec.structs.replace(request, cache_salt=None)


class IgnoresAborts(Broken):
    """An adapter that completes an aborted request."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        return msgspec.structs.replace(request, abort=None)


class AdapterAlwaysOn(Broken):
    """An adapter whose base model always has an adapter."""

    def understood(self, request: CompletionRequest) -> CompletionRequest:
        self.contents.setdefault("hidden", "hidden")
        return msgspec.structs.replace(request, model="hidden") if request.model == self.base_model else request


class RefusesSilently(Broken):
    """An adapter that refuses requests without a message."""

    def complete(self, request: CompletionRequest) -> Completion:
        raise RequestRefused(0, "")


class IgnoresAdapters(Broken):
    """An adapter that accepts any adapter to load, and answers as the base model."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        self.contents[name] = None  # type: ignore[assignment]


class NameIsContent(Broken):
    """An adapter that identifies adapters by name and ignores their content."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        super().load_adapter(name, path, in_place=in_place)
        self.contents[name] = name


class KeepsOldContent(Broken):
    """An adapter that does not read an adapter again that it has read once, by its path or under its name."""

    def __init__(self, *, by_path: bool) -> None:
        super().__init__()
        self.by_path = by_path
        self.read: dict[str, str] = {}

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        super().load_adapter(name, path, in_place=in_place)
        self.contents[name] = self.read.setdefault(path if self.by_path else name, self.contents[name])


class DigestsAnything(Broken):
    """An adapter that fails on a folder without an adapter."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        self.contents[name] = digest_of(Path(path))


class KeepsNames(Broken):
    """An adapter that unloads nothing, and reports that it did."""

    def unload_adapter(self, name: str) -> None: ...


class SwitchesBeside(Broken):
    """An adapter that switches an adapter on without switching the earlier one off."""

    def switch_adapter(self, name: str, path: str) -> None:
        self.load_adapter(name, path, in_place=False)


class SwitchesOtherwise(Broken):
    """An adapter whose switched adapters answer differently from chosen ones."""

    def switch_adapter(self, name: str, path: str) -> None:
        self.contents[name] = "something else"


class RestoresNothing(Broken):
    """An adapter that reports saved and restored state without doing either."""

    def __init__(self) -> None:
        super().__init__(claims=(Capability.SAVED_STATE,))
        self.names: set[str] = set()

    def save_state(self, name: str) -> int:
        self.names.add(name)
        return 4096

    def restore_state(self, name: str) -> int:
        if name not in self.names:
            raise RequestRefused(404, "nobody saved it")
        self.blocks.clear()
        return 4096


class ResetsNothing(Broken):
    """An adapter that resets nothing, and reports that it did."""

    def reset_cache(self) -> bool:
        return True


class ReversesResults(Broken):
    """An adapter that returns results in another order."""

    def reported(self, served: list[Served]) -> list[Served]:
        return served[::-1]


class RoomForEight(Broken):
    """An adapter that has room for eight requests and loses the others."""

    def reported(self, served: list[Served]) -> list[Served]:
        return [*served[:8], *(Served(one.sent, one.finished, EngineSilent("lost")) for one in served[8:])]


class RefusesAllButTheFirst(Broken):
    """An adapter that refuses every request but the first."""

    def reported(self, served: list[Served]) -> list[Served]:
        return [served[0], *(Served(s.sent, s.finished, RequestRefused(400, "there is one")) for s in served[1:])]


class OneRefusalFailsAll(Broken):
    """An adapter that fails all requests of a burst if one is refused."""

    def reported(self, served: list[Served]) -> list[Served]:
        bad = [one.result for one in served if isinstance(one.result, RequestRefused)]
        return [Served(one.sent, one.finished, bad[0]) for one in served] if bad else served


class NoCountsInBursts(Broken):
    """An adapter that loses the counts of cached tokens in bursts."""

    def reported(self, served: list[Served]) -> list[Served]:
        lost = [replaced(cached_tokens=None)(PLAIN_REQUEST, one.result) for one in served]  # type: ignore[arg-type]
        return [Served(one.sent, one.finished, result) for one, result in zip(served, lost, strict=True)]


class IgnoresOffsets(Broken):
    """An adapter that ignores offsets."""

    def serve(self, arrivals: Sequence[Arrival], on_token: OnToken, between: Callable[[], None]) -> list[Served]:
        return super().serve([Arrival(one.request) for one in arrivals], on_token, between)


class ReportsNoTokens(Broken):
    """An adapter that reports no tokens, and never calls `between`."""

    def serve(self, arrivals: Sequence[Arrival], on_token: OnToken, between: Callable[[], None]) -> list[Served]:
        return super().serve(arrivals, lambda _number, _count: None, lambda: None)


class CountersOfTheLastRequest(Broken):
    """An adapter whose counters are those of the last request alone."""

    def metrics(self) -> Metrics:
        read = super().metrics()
        self.queried = self.hit = 0
        return read


class FixedFigures(Broken):
    """An adapter whose figures are always the same."""

    def __init__(self, **figures: float) -> None:
        super().__init__()
        self.figures = figures

    def metrics(self) -> Metrics:
        return msgspec.structs.replace(super().metrics(), **self.figures)


class PublishesWithoutCapability(Broken):
    """An adapter that publishes events without the capability."""

    def take_events(self) -> Published:
        return Published(batches=(EventBatch(0, 1.0, ()),))


class ClockRunsBackwards(Broken):
    """An adapter whose clock counts down."""

    def clock(self) -> float:
        return -time.monotonic()


class NeverStops(Broken):
    """An adapter that does not stop."""

    def stop(self) -> None: ...


class NotAlive(Broken):
    """An adapter that answers, and reports that it is not alive."""

    def alive(self) -> bool:
        return False


C = Capability
PLAIN_REQUEST = CompletionRequest(model="base", prompt=(1,), max_tokens=1)
BLANK = (("capabilities", {c: Support(True, " ") for c in Capability}),)
SECRET = (("config", {"command": "serve --api-key hunter2"}),)
Make = Callable[[], Engine]
BROKEN: list[tuple[Callable[..., Any], Make, str]] = [
    (statements.test_every_capability_is_reported_with_evidence, lambda: Broken(said=BLANK), "Engine.capabilities"),
    (
        statements.test_facts_and_their_capabilities_agree,
        lambda: Broken(without=(C.BLOCK_SIZE,)),
        "Engine.capabilities",
    ),
    (statements.test_sizes_are_sane, lambda: Broken(shape=(("block_size", 0),)), "EngineShape"),
    (
        statements.test_the_cache_is_on_or_off_as_requested,
        lambda: Broken(shape=(("prefix_caching", False),)),
        "EngineShape.prefix_caching",
    ),
    (statements.test_the_configuration_can_be_printed, lambda: Broken(said=SECRET), "Engine.config"),
    (statements.test_time_goes_forward, ClockRunsBackwards, "Engine.clock"),
    (statements.test_counters_never_go_back, CountersOfTheLastRequest, "Metrics.queried_tokens"),
    (statements.test_figures_are_there_or_none, lambda: Broken(without=(C.METRICS,)), "Engine.metrics"),
    (
        statements.test_a_figure_with_a_capability_of_its_own_is_there_with_it,
        lambda: Broken(without=(C.PREEMPTION_COUNTS,)),
        "Metrics.preemptions",
    ),
    (
        statements.test_looked_up_tokens_grow_with_prompts,
        lambda: FixedFigures(queried_tokens=0),
        "Metrics.queried_tokens",
    ),
    (statements.test_gauges_of_requests_come_to_rest, lambda: FixedFigures(running=1), "Metrics.running"),
    (statements.test_nothing_is_published_without_the_capability, PublishesWithoutCapability, "Engine.take_events"),
    (statements.test_a_chat_is_rendered_or_refused, lambda: Broken(without=(C.CHAT,)), "Engine.render"),
    (statements.test_the_engine_is_alive_and_its_log_can_be_read, NotAlive, "Engine.alive"),
    (answers.test_an_answer_is_as_long_as_requested, lambda: Broken(shorter), "CompletionRequest.max_tokens"),
    (
        answers.test_an_answer_is_as_long_as_requested,
        lambda: Broken(replaced(finish_reason="stop")),
        "Completion.finish_reason",
    ),
    (answers.test_tokens_have_their_times, lambda: Broken(each_token(at=100.0)), "Token.at"),
    (
        answers.test_the_reported_prompt_is_the_one_that_was_sent,
        lambda: Broken(replaced(prompt=(1, 2))),
        "Completion.prompt",
    ),
    (answers.test_greedy_answers_repeat, lambda: Broken(sampled), "CompletionRequest"),
    (answers.test_another_prompt_has_another_answer, DropsTheLast, "CompletionRequest.prompt"),
    (answers.test_many_threads_may_send_requests, OneAtATime, "Engine.complete"),
    (answers.test_an_unknown_model_is_refused, AcceptsUnknownModels, "Engine.complete"),
    (answers.test_a_prompt_too_long_has_no_answer, CutsPrompts, "has no answer"),
    (answers.test_scores_where_there_are_some, lambda: Broken(each_token(gap=-1.0)), "Token.gap"),
    (answers.test_scores_where_there_are_some, lambda: Broken(each_token(logprob=None)), "Token.logprob"),
    (answers.test_scores_change_no_token, lambda: Broken(other_with_scores), "ResponseOptions.logprobs"),
    (
        answers.test_prompt_scores_are_complete,
        lambda: Broken(replaced(prompt_logprobs=(None,))),
        "Completion.prompt_logprobs",
    ),
    (
        answers.test_several_answers_where_there_are_some,
        lambda: Broken(claims=(C.SEVERAL_ANSWERS,)),
        "Completion.others",
    ),
    (answers.test_a_stop_string_ends_an_answer, lambda: Broken(claims=(C.STOP_STRINGS,)), "ResponseOptions.stop"),
    (answers.test_no_token_arrives_after_a_disconnect_while_decoding, IgnoresAborts, "Abort.after_tokens"),
    (answers.test_an_early_disconnect_reports_the_stage_of_the_request, IgnoresAborts, "Completion.aborted"),
    (answers.test_a_disconnect_in_prefill_does_not_happen_in_the_queue, IgnoresAborts, "Abort.at"),
    (
        answers.test_a_disconnect_in_prefill_does_not_happen_in_the_queue,
        lambda: Broken(gone_from_the_queue),
        "Abort.at",
    ),
    (
        answers.test_an_abort_that_never_comes_due_changes_nothing,
        lambda: Broken(replaced(aborted=Stage.DECODE)),
        "Completion.aborted",
    ),
    (answers.test_a_refusal_has_a_status_and_words, RefusesSilently, "RequestRefused"),
    (serving.test_results_come_in_the_order_of_arrivals, ReversesResults, "Engine.serve"),
    (serving.test_a_request_is_sent_at_its_offset, IgnoresOffsets, "Engine.serve"),
    (serving.test_tokens_are_reported_as_they_arrive, ReportsNoTokens, "Engine.serve"),
    (serving.test_the_caller_is_called_between_tokens, ReportsNoTokens, "Engine.serve"),
    (serving.test_one_refusal_loses_no_other, OneRefusalFailsAll, "Engine.serve"),
    (serving.test_more_than_run_at_a_time_are_all_answered, RoomForEight, "Engine.serve"),
    (serving.test_the_same_request_twice_is_two_requests, RefusesAllButTheFirst, "Engine.serve"),
    (
        cache.test_a_new_prompt_hits_nothing,
        lambda: Broken(replaced(cached_tokens=0), without=(C.CACHED_TOKENS,)),
        "missing is not zero",
    ),
    (
        cache.test_a_new_prompt_hits_nothing,
        lambda: Broken(replaced(cached_tokens=None)),
        "Completion.cached_tokens",
    ),
    (
        cache.test_a_new_prompt_hits_nothing,
        lambda: Broken(replaced(cached_between=(8, 16))),
        "Completion.cached_between",
    ),
    (cache.test_a_prompt_that_was_sent_before_hits, lambda: Broken(replaced(cached_tokens=0)), "grows when"),
    (
        cache.test_a_prompt_that_was_sent_before_hits,
        lambda: Broken(whole_prompt),
        "whose last token is always computed",
    ),
    (
        cache.test_without_its_cache_nothing_hits,
        lambda: Broken(shape=(("prefix_caching", False),)),
        "with prefix caching off nothing is hit",
    ),
    (cache.test_counts_are_reported_side_by_side_too, NoCountsInBursts, "Completion.cached_tokens"),
    (cache.test_a_confirmed_reset_leaves_nothing, ResetsNothing, "Engine.reset_cache"),
    (
        cache.test_a_confirmed_reset_leaves_nothing,
        lambda: Broken(without=(C.CACHE_RESET,)),
        "Engine.reset_cache",
    ),
    (cache.test_what_was_saved_is_there_again_once_it_is_restored, RestoresNothing, "SavesState.restore_state"),
    (cache.test_a_salt_reaches_the_engine, DropsSalts, "CompletionRequest.cache_salt"),
    (
        cache.test_a_control_without_its_capability_is_refused,
        lambda: without_switch(),
        "Engine.switch_adapter",
    ),
    (adapters.test_an_adapter_answers_as_itself, IgnoresAdapters, "Engine.load_adapter"),
    (adapters.test_the_base_model_has_no_adapter_on, AdapterAlwaysOn, "Engine.base_model"),
    (adapters.test_one_content_under_two_names_is_one_content, NameIsContent, "Engine.load_adapter"),
    (
        adapters.test_a_path_with_other_files_is_another_content,
        lambda: KeepsOldContent(by_path=True),
        "Engine.load_adapter",
    ),
    (adapters.test_a_path_without_an_adapter_is_refused, DigestsAnything, "Engine.load_adapter"),
    (
        adapters.test_a_content_that_appears_after_the_start,
        lambda: Broken(without=(C.RUNTIME_LORA,)),
        "without RUNTIME_LORA",
    ),
    (adapters.test_an_unloaded_name_is_unknown, KeepsNames, "a name that was unloaded"),
    (adapters.test_a_name_can_be_used_again, lambda: KeepsOldContent(by_path=False), "Engine.unload_adapter"),
    (
        adapters.test_an_adapter_is_replaced_in_place_or_that_is_refused,
        lambda: Broken(without=(C.LORA_IN_PLACE,)),
        "without LORA_IN_PLACE",
    ),
    (
        adapters.test_an_adapter_is_replaced_in_place_or_that_is_refused,
        lambda: Broken(said=(("bug", InjectedBug.STALE_WEIGHTS),)),
        "in_place replaces",
    ),
    (adapters.test_adapters_side_by_side, RefusesAllButTheFirst, "side by side"),
    (adapters.test_what_is_switched_on_answers_for_its_name, SwitchesBeside, "switched on before another"),
    (adapters.test_the_switch_and_the_choice_mean_the_same_content, SwitchesOtherwise, "Engine.switch_adapter"),
    (adapters.test_a_switch_to_nothing_is_refused, SwitchesOtherwise, "Engine.switch_adapter"),
    (
        adapters.test_without_adapters_loading_is_refused,
        lambda: Broken(without=(C.ADAPTER_CHOICE,)),
        "without ADAPTER_CHOICE",
    ),
    (stopping.test_a_stop_in_the_midst_ends_every_request, NeverStops, "Engine.stop"),
    (stopping.test_a_stopped_engine_reports_its_end, NeverStops, "Engine.alive"),
]


def without_switch() -> Engine:
    """Return an adapter that lacks the capability to switch, and nevertheless switches anything."""
    engine = SwitchesOtherwise()
    engine.capabilities[C.ADAPTER_SWITCH] = Support(False, "left out")
    return engine


@pytest.mark.parametrize(("test", "make", "words"), BROKEN, ids=[f"{t.__name__}-{w}" for t, _, w in BROKEN])
def test_a_broken_rule_is_named(
    test: Callable[..., Any], make: Make, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names its place in adapters/protocol/engine.py and what it requires."""
    monkeypatch.setattr(rules, "SETTLE_SECONDS", 0.1)
    engine = make()
    given: dict[str, Any] = {
        "engine": engine,
        "uncached": engine,
        "stopped": engine,
        "bare": ScriptedEngine(),
        "contents": subjects.contents(),
        "unknown_adapter": subjects.unknown_adapter(),
        "tmp_path": tmp_path,
        "tokens": 5,
        "in_place": False,
        "place": -1,
    }
    with pytest.raises(rules.RuleBroken, match=re.escape(words)) as caught:
        test(**{name: given[name] for name in inspect.signature(test).parameters})
    assert "(adapters/protocol/engine.py)" in str(caught.value)


def test_every_contract_test_can_fail() -> None:
    """Each contract test is broken by at least one adapter."""
    rooms = (statements, answers, serving, cache, adapters, stopping)
    tests = {f"{room.__name__}.{name}" for room in rooms for name in vars(room) if name.startswith("test_")}
    assert tests - {f"{test.__module__}.{test.__name__}" for test, _, _ in BROKEN} == set()
