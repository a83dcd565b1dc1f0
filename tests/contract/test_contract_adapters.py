"""LoRA adapters behind names: each route that an engine has leads to the content it names, and no other does.

Answers are compared as an engine without its cache gives them, so that a fault of the cache is not the adapter's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.rules import asked, can, cold, goes_on, hold, is_error, need, new_name, prompt, refused, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.harness.execution.models.lora import AdapterFiles, place

Contents = dict[str, AdapterFiles]


@contextlib.contextmanager
def loaded(engine: CheckedEngine, path: Path, name: str | None = None) -> Iterator[str]:
    """An adapter under a name, for as long as the block runs."""
    name = name or new_name()
    engine.load_adapter(name, str(path.resolve()), in_place=False)
    try:
        yield name
    finally:
        with contextlib.suppress(RequestRefused):  # the test may have unloaded it
            engine.unload_adapter(name)


def unknown(engine: CheckedEngine, name: str, why: str) -> None:
    """A name that nothing is behind."""
    with refused("Engine.complete", f"RequestRefused for a name that {why}"):
        engine.complete(asked(engine, model=name))


def test_an_adapter_answers_as_itself(uncached: CheckedEngine, contents: Contents) -> None:
    """Not as the base model, and not as another; the base model stays what it is."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about = prompt(40)
    base = cold(uncached, uncached.base_model, about)
    with loaded(uncached, contents["A"].folder) as a, loaded(uncached, contents["B"].folder) as b:
        answers = {"base": base, "A": cold(uncached, a, about), "B": cold(uncached, b, about)}
        different = len({tuple(answer) for answer in answers.values()}) == 3
        hold(different, "Engine.load_adapter", "a name answers as the adapter behind it", answers)
        again = cold(uncached, uncached.base_model, about)
        hold(again == base, "Engine.base_model", "the model without any adapter, whatever is loaded", (base, again))
    last = cold(uncached, uncached.base_model, about)
    hold(last == base, "Engine.unload_adapter", "the base model is what it was", (base, last))


def test_the_base_model_has_no_adapter_on(uncached: CheckedEngine, bare: CheckedEngine) -> None:
    """Not even those that the engine was told of at its start: it answers as if there were none."""
    about = prompt(40)
    without, beside = (cold(engine, engine.base_model, about) for engine in (bare, uncached))
    hold(without == beside, "Engine.base_model", "the served name of the model without any adapter", (without, beside))


def test_one_content_under_two_names_is_one_content(
    uncached: CheckedEngine, contents: Contents, tmp_path: Path
) -> None:
    """And from two folders: a content is its files, not where they lie."""
    need(uncached, Capability.ADAPTER_CHOICE)
    copy, about = place(contents["A"], tmp_path / "copy"), prompt(40)
    with loaded(uncached, contents["A"].folder) as one, loaded(uncached, copy) as other:
        answers = [cold(uncached, name, about) for name in (one, other)]
    hold(answers[0] == answers[1], "Engine.load_adapter", "one content answers alike under two names", answers)


def test_a_path_with_other_files_is_another_content(
    uncached: CheckedEngine, contents: Contents, tmp_path: Path
) -> None:
    """Trainers write every checkpoint to the same folder: what counts is what lies there at the time of loading."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about, name = prompt(40), new_name()
    with loaded(uncached, contents["B"].folder) as b:
        wanted = cold(uncached, b, about)
    with loaded(uncached, place(contents["A"], tmp_path / "same"), name):
        before = cold(uncached, name, about)
    with loaded(uncached, place(contents["B"], tmp_path / "same"), name):
        after = cold(uncached, name, about)
    rule = "the files are read, or looked up, when they are loaded"
    hold(before != after and after == wanted, "Engine.load_adapter", rule, (before, after, wanted))


def test_a_path_without_an_adapter_is_refused(engine: CheckedEngine, tmp_path: Path) -> None:
    """Its name stays unknown."""
    need(engine, Capability.ADAPTER_CHOICE)
    name = new_name()
    for path in (tmp_path, tmp_path / "nowhere"):
        with refused("Engine.load_adapter", "RequestRefused for a path that holds no adapter"):
            engine.load_adapter(name, str(path), in_place=False)
    unknown(engine, name, "could not be loaded")
    goes_on(engine, "a path without an adapter")


def test_a_content_that_came_too_late(engine: CheckedEngine, stranger: AdapterFiles) -> None:
    """RUNTIME_LORA takes it; an engine that reads its adapters at the start refuses what was not there."""
    need(engine, Capability.ADAPTER_CHOICE)
    if can(engine, Capability.RUNTIME_LORA):
        with loaded(engine, stranger.folder) as name:
            engine.complete(asked(engine, model=name))
        return
    with refused("Engine.load_adapter", "without RUNTIME_LORA, RequestRefused for what was not there at the start"):
        engine.load_adapter(new_name(), str(stranger.folder.resolve()), in_place=False)


def test_an_unloaded_name_is_unknown(engine: CheckedEngine, contents: Contents) -> None:
    """It is not answered by the base model, and cannot be unloaded again; another name is left alone."""
    need(engine, Capability.ADAPTER_CHOICE)
    with loaded(engine, contents["B"].folder) as other:
        with loaded(engine, contents["A"].folder) as name:
            engine.complete(asked(engine, model=name))
            engine.unload_adapter(name)
            unknown(engine, name, "was unloaded")
            with refused("Engine.unload_adapter", "RequestRefused for a name that is not loaded"):
                engine.unload_adapter(name)
        engine.complete(asked(engine, model=other))
    with refused("Engine.unload_adapter", "RequestRefused for a name that nobody loaded"):
        engine.unload_adapter(new_name())


def test_a_name_can_be_used_again(uncached: CheckedEngine, contents: Contents) -> None:
    """Unload and load: the new content answers."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about, name, answers = prompt(40), new_name(), []
    for content in ("A", "B", "A"):
        with loaded(uncached, contents[content].folder, name):
            answers.append(cold(uncached, name, about))
    hold(answers[0] == answers[2] != answers[1], "Engine.unload_adapter", "forgets what was behind a name", answers)


def test_an_adapter_is_replaced_in_place_or_that_is_refused(uncached: CheckedEngine, contents: Contents) -> None:
    """By the capability: replaced, it answers as the new one; refused, as the old one."""
    need(uncached, Capability.ADAPTER_CHOICE)
    about, path = prompt(40), {name: str(files.folder.resolve()) for name, files in contents.items()}
    with loaded(uncached, contents["B"].folder) as b, loaded(uncached, contents["A"].folder) as name:
        old, new = cold(uncached, name, about), cold(uncached, b, about)
        if can(uncached, Capability.LORA_IN_PLACE):
            uncached.load_adapter(name, path["B"], in_place=True)
            got, rule = cold(uncached, name, about), "in_place replaces what is behind the name"
            hold(got == new != old, "Engine.load_adapter", rule, (old, new, got))
            return
        with refused("Engine.load_adapter", "without LORA_IN_PLACE, in_place is refused"):
            uncached.load_adapter(name, path["B"], in_place=True)
        got, rule = cold(uncached, name, about), "what was refused has changed nothing"
        hold(got == old, "Engine.load_adapter", rule, (old, new, got))


def test_adapters_side_by_side(uncached: CheckedEngine, contents: Contents) -> None:
    """MIXED_ADAPTERS: requests of several adapters in one burst are each answered. (As whom is for GROUND-1.)"""
    need(uncached, Capability.MIXED_ADAPTERS)

    with loaded(uncached, contents["A"].folder) as a, loaded(uncached, contents["B"].folder) as b:
        served = serve(uncached, *(asked(uncached, model=model) for model in (a, b, a)))
    whole = not any(is_error(one.result) for one in served)
    hold(whole, "Capability.MIXED_ADAPTERS", "requests of several adapters can run side by side", served)


def test_what_is_switched_on_answers_for_its_name(uncached: CheckedEngine, contents: Contents) -> None:
    """As the content does that it names; the name switched on before is unknown, and off is off."""
    need(uncached, Capability.ADAPTER_SWITCH)
    about, names = prompt(40), {content: new_name() for content in ("A", "B")}
    base, answers = cold(uncached, uncached.base_model, about), {}
    for content in ("A", "B"):
        uncached.switch_adapter(names[content], str(contents[content].folder.resolve()))
        answers[content] = cold(uncached, names[content], about)
    rule = "requests to this name are answered as the adapter that was switched on"
    hold(len({tuple(a) for a in (base, *answers.values())}) == 3, "Engine.switch_adapter", rule, (base, answers))
    unknown(uncached, names["A"], "was switched on before another")
    uncached.unload_adapter(names["B"])
    unknown(uncached, names["B"], "was switched off")
    again = cold(uncached, uncached.base_model, about)
    hold(again == base, "Engine.unload_adapter", "switches off what was switched on", (base, again))


def test_the_switch_and_the_choice_mean_the_same_content(uncached: CheckedEngine, contents: Contents) -> None:
    """An adapter is the same one, whichever way it was reached."""
    need(uncached, Capability.ADAPTER_SWITCH, Capability.ADAPTER_CHOICE)
    about, name = prompt(40), new_name()
    with loaded(uncached, contents["A"].folder) as chosen:
        wanted = cold(uncached, chosen, about)
    uncached.switch_adapter(name, str(contents["A"].folder.resolve()))
    got = cold(uncached, name, about)
    uncached.unload_adapter(name)
    hold(got == wanted, "Engine.switch_adapter", "an adapter is the same one, switched on or chosen", (wanted, got))


def test_a_switch_to_nothing_is_refused(engine: CheckedEngine, tmp_path: Path) -> None:
    """And the name is none."""
    need(engine, Capability.ADAPTER_SWITCH)
    name = new_name()
    with refused("Engine.switch_adapter", "RequestRefused for a path that holds no adapter"):
        engine.switch_adapter(name, str(tmp_path))
    unknown(engine, name, "could not be switched on")


@pytest.mark.parametrize("in_place", [False, True])
def test_without_adapters_loading_is_refused(engine: CheckedEngine, contents: Contents, in_place: bool) -> None:
    """An engine that knows no adapters by name says so, and does not answer as the base model under it."""
    if can(engine, Capability.ADAPTER_CHOICE):
        return
    name = new_name()
    with refused("Engine.load_adapter", "without ADAPTER_CHOICE it is refused"):
        engine.load_adapter(name, str(contents["A"].folder.resolve()), in_place=in_place)
    unknown(engine, name, "could not be loaded")
