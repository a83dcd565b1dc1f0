"""LoRA adapters behind names: each route of an engine loads the content that it names, and no other.

Answers are compared on an engine without its cache, so that a fault of the cache is not blamed on the adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.rules import (
    can,
    check,
    cold,
    is_error,
    need,
    new_name,
    new_request,
    prompt,
    refused,
    serve,
    still_answers,
)

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.harness.execution.models.lora import AdapterFiles, place

Contents = dict[str, AdapterFiles]


@contextlib.contextmanager
def loaded(engine: CheckedEngine, path: Path, name: str | None = None) -> Iterator[str]:
    """Load an adapter under a name for the duration of the block."""
    name = name or new_name()
    engine.load_adapter(name, str(path.resolve()), in_place=False)
    try:
        yield name
    finally:
        with contextlib.suppress(RequestRefused):  # the test may have unloaded it
            engine.unload_adapter(name)


def assert_unknown(engine: CheckedEngine, name: str, why: str) -> None:
    """Check that a name without an adapter is refused."""
    with refused("Engine.complete", f"RequestRefused for a name that {why}"):
        engine.complete(new_request(engine, model=name))


def test_an_adapter_answers_as_itself(uncached: CheckedEngine, contents: Contents) -> None:
    """An adapter answers neither as the base model nor as another adapter, and the base model stays unchanged."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about = prompt(40)
    base = cold(uncached, uncached.base_model, about)
    with loaded(uncached, contents["A"].folder) as a, loaded(uncached, contents["B"].folder) as b:
        answers = {"base": base, "A": cold(uncached, a, about), "B": cold(uncached, b, about)}
        different = len({tuple(answer) for answer in answers.values()}) == 3
        check(different, "Engine.load_adapter", "a name answers as the adapter behind it", answers)
        again = cold(uncached, uncached.base_model, about)
        check(again == base, "Engine.base_model", "the model without any adapter, whatever is loaded", (base, again))
    last = cold(uncached, uncached.base_model, about)
    check(last == base, "Engine.unload_adapter", "the base model is what it was", (base, last))


def test_the_base_model_has_no_adapter_on(uncached: CheckedEngine, bare: CheckedEngine) -> None:
    """The base model answers as on an engine without adapters, although the engine knows some from its start."""
    about = prompt(40)
    without, beside = (cold(engine, engine.base_model, about) for engine in (bare, uncached))
    check(without == beside, "Engine.base_model", "the served name of the model without any adapter", (without, beside))


def test_one_content_under_two_names_is_one_content(
    uncached: CheckedEngine, contents: Contents, tmp_path: Path
) -> None:
    """An adapter is identified by its files, not by their folder: two names and two folders give the same answers."""
    need(uncached, Capability.ADAPTER_CHOICE)
    copy, about = place(contents["A"], tmp_path / "copy"), prompt(40)
    with loaded(uncached, contents["A"].folder) as one, loaded(uncached, copy) as other:
        answers = [cold(uncached, name, about) for name in (one, other)]
    check(answers[0] == answers[1], "Engine.load_adapter", "one content answers alike under two names", answers)


def test_a_path_with_other_files_is_another_content(
    uncached: CheckedEngine, contents: Contents, tmp_path: Path
) -> None:
    """Trainers write every checkpoint to the same folder, so the files at the time of loading are what counts."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about, name = prompt(40), new_name()
    with loaded(uncached, contents["B"].folder) as b:
        expected = cold(uncached, b, about)
    with loaded(uncached, place(contents["A"], tmp_path / "same"), name):
        before = cold(uncached, name, about)
    with loaded(uncached, place(contents["B"], tmp_path / "same"), name):
        after = cold(uncached, name, about)
    rule = "the files are read, or looked up, when they are loaded"
    check(before != after and after == expected, "Engine.load_adapter", rule, (before, after, expected))


def test_a_path_without_an_adapter_is_refused(engine: CheckedEngine, tmp_path: Path) -> None:
    """Loading from a folder without an adapter is refused, and the name stays unknown."""
    need(engine, Capability.ADAPTER_CHOICE)
    name = new_name()
    for path in (tmp_path, tmp_path / "nowhere"):
        with refused("Engine.load_adapter", "RequestRefused for a path that holds no adapter"):
            engine.load_adapter(name, str(path), in_place=False)
    assert_unknown(engine, name, "could not be loaded")
    still_answers(engine, "a path without an adapter")


def test_a_content_that_appears_after_the_start(engine: CheckedEngine, unknown_adapter: AdapterFiles) -> None:
    """With RUNTIME_LORA a new content can be loaded; an engine that reads its adapters at the start refuses it."""
    need(engine, Capability.ADAPTER_CHOICE)
    if can(engine, Capability.RUNTIME_LORA):
        with loaded(engine, unknown_adapter.folder) as name:
            engine.complete(new_request(engine, model=name))
        return
    with refused("Engine.load_adapter", "without RUNTIME_LORA, RequestRefused for what was not there at the start"):
        engine.load_adapter(new_name(), str(unknown_adapter.folder.resolve()), in_place=False)


def test_an_unloaded_name_is_unknown(engine: CheckedEngine, contents: Contents) -> None:
    """The base model does not answer under an unloaded name, a second unload is refused, and other names are
    unaffected.
    """
    need(engine, Capability.ADAPTER_CHOICE)
    with loaded(engine, contents["B"].folder) as other:
        with loaded(engine, contents["A"].folder) as name:
            engine.complete(new_request(engine, model=name))
            engine.unload_adapter(name)
            assert_unknown(engine, name, "was unloaded")
            with refused("Engine.unload_adapter", "RequestRefused for a name that is not loaded"):
                engine.unload_adapter(name)
        engine.complete(new_request(engine, model=other))
    with refused("Engine.unload_adapter", "RequestRefused for a name that nobody loaded"):
        engine.unload_adapter(new_name())


def test_a_name_can_be_used_again(uncached: CheckedEngine, contents: Contents) -> None:
    """After an unload and a load under the same name the new content answers."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about, name, answers = prompt(40), new_name(), []
    for content in ("A", "B", "A"):
        with loaded(uncached, contents[content].folder, name):
            answers.append(cold(uncached, name, about))
    check(answers[0] == answers[2] != answers[1], "Engine.unload_adapter", "forgets what was behind a name", answers)


def test_an_adapter_is_replaced_in_place_or_that_is_refused(uncached: CheckedEngine, contents: Contents) -> None:
    """With LORA_IN_PLACE the name answers as the new content; otherwise the load is refused and the old content
    answers.
    """
    need(uncached, Capability.ADAPTER_CHOICE)
    about, path = prompt(40), {name: str(files.folder.resolve()) for name, files in contents.items()}
    with loaded(uncached, contents["B"].folder) as b, loaded(uncached, contents["A"].folder) as name:
        old, new = cold(uncached, name, about), cold(uncached, b, about)
        if can(uncached, Capability.LORA_IN_PLACE):
            uncached.load_adapter(name, path["B"], in_place=True)
            got, rule = cold(uncached, name, about), "in_place replaces what is behind the name"
            check(got == new != old, "Engine.load_adapter", rule, (old, new, got))
            return
        with refused("Engine.load_adapter", "without LORA_IN_PLACE, in_place is refused"):
            uncached.load_adapter(name, path["B"], in_place=True)
        got, rule = cold(uncached, name, about), "what was refused has changed nothing"
        check(got == old, "Engine.load_adapter", rule, (old, new, got))


def test_adapters_side_by_side(uncached: CheckedEngine, contents: Contents) -> None:
    """With MIXED_ADAPTERS requests of several adapters in one burst are all answered. GROUND-1 compares the answers."""
    need(uncached, Capability.MIXED_ADAPTERS)

    with loaded(uncached, contents["A"].folder) as a, loaded(uncached, contents["B"].folder) as b:
        served = serve(uncached, *(new_request(uncached, model=model) for model in (a, b, a)))
    whole = not any(is_error(one.result) for one in served)
    check(whole, "Capability.MIXED_ADAPTERS", "requests of several adapters can run side by side", served)


def test_what_is_switched_on_answers_for_its_name(uncached: CheckedEngine, contents: Contents) -> None:
    """The name that is switched on answers as its content, the previous name is unknown, and switching off takes
    effect.
    """
    need(uncached, Capability.ADAPTER_SWITCH)
    about, names = prompt(40), {content: new_name() for content in ("A", "B")}
    base, answers = cold(uncached, uncached.base_model, about), {}
    for content in ("A", "B"):
        uncached.switch_adapter(names[content], str(contents[content].folder.resolve()))
        answers[content] = cold(uncached, names[content], about)
    rule = "requests to this name are answered as the adapter that was switched on"
    check(len({tuple(a) for a in (base, *answers.values())}) == 3, "Engine.switch_adapter", rule, (base, answers))
    assert_unknown(uncached, names["A"], "was switched on before another")
    uncached.unload_adapter(names["B"])
    assert_unknown(uncached, names["B"], "was switched off")
    again = cold(uncached, uncached.base_model, about)
    check(again == base, "Engine.unload_adapter", "switches off what was switched on", (base, again))


def test_the_switch_and_the_choice_mean_the_same_content(uncached: CheckedEngine, contents: Contents) -> None:
    """An adapter gives the same answers whether it is switched on or chosen by name."""
    need(uncached, Capability.ADAPTER_SWITCH, Capability.ADAPTER_CHOICE)
    about, name = prompt(40), new_name()
    with loaded(uncached, contents["A"].folder) as chosen:
        expected = cold(uncached, chosen, about)
    uncached.switch_adapter(name, str(contents["A"].folder.resolve()))
    got = cold(uncached, name, about)
    uncached.unload_adapter(name)
    check(
        got == expected, "Engine.switch_adapter", "an adapter is the same one, switched on or chosen", (expected, got)
    )


def test_a_switch_to_nothing_is_refused(engine: CheckedEngine, tmp_path: Path) -> None:
    """A switch to a folder without an adapter is refused, and the name stays unknown."""
    need(engine, Capability.ADAPTER_SWITCH)
    name = new_name()
    with refused("Engine.switch_adapter", "RequestRefused for a path that holds no adapter"):
        engine.switch_adapter(name, str(tmp_path))
    assert_unknown(engine, name, "could not be switched on")


@pytest.mark.parametrize("in_place", [False, True])
def test_without_adapters_loading_is_refused(engine: CheckedEngine, contents: Contents, in_place: bool) -> None:
    """An engine without adapters by name refuses to load one, and does not answer as the base model under that name."""
    if can(engine, Capability.ADAPTER_CHOICE):
        return
    name = new_name()
    with refused("Engine.load_adapter", "without ADAPTER_CHOICE it is refused"):
        engine.load_adapter(name, str(contents["A"].folder.resolve()), in_place=in_place)
    assert_unknown(engine, name, "could not be loaded")
