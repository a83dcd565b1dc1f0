"""`coldproof prove REPORT`: goes on with the counterexamples for which a run had no time.

It replays, minimises and confirms them, runs their controls, looks for their causes, and writes the report again with
what that showed. Exit code: that of the report.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from coldproof.adapters.common.redact import KEY_VARIABLE
from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.harness.case.finding_facts import facts_of
from coldproof.harness.case.load import load_case
from coldproof.harness.case.replay_command import GIVEN_AGAIN, URLS
from coldproof.harness.cli.io import (
    FAILED,
    USAGE,
    Parser,
    Refusal,
    Subcommand,
    added_to,
    argument,
    interpreting,
    loaded,
    reason_of,
    say,
)
from coldproof.harness.cli.run import run_options
from coldproof.harness.option_table import OPTIONS, name_of, option_of, option_words
from coldproof.harness.option_words import join_values
from coldproof.harness.options import OFF
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import read_lines
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.pytest_command import pytest_command
from coldproof.harness.session.run_reports import CASES, RESULTS, write_case_files
from coldproof.reports.assemble.assemble import assemble, cases_that_wait, events_of, last_of, read_events
from coldproof.reports.exports.write import write_all
from coldproof.reports.files.own_folder import SEAL
from coldproof.reports.format.text import many

Event = dict[str, Any]
# Options of the run that are not those of the proofs: what it drew, how long, and what it wrote where.
OF_DRAWING = (
    *("--report-dir", "--json", "--budget", "--requirements", "--findings", "--update-known-issues", "--replay"),
    *("--prove", "--shard", "--guided", "--examples-from", "--joined"),
)
KEY = ("layer", "requirement", "cell", "test")
STAMPS = ("process", "number")  # of an event: those of another run leave gaps here


def run(options: argparse.Namespace) -> int:
    """Prove what is left of a report, and return the report's exit code. Raises Refusal."""
    report: Path = options.report
    results = loaded(report)
    left = [case for case in results.cases if case.unfinished is not None]
    if not left:
        say("nothing is left to prove in this report")
        return results.exit_code
    if (report / SEAL).is_file():
        raise Refusal(USAGE, f"{report} is the bundle of a qualification, which stays as it is")
    check(report, left)
    scratch = ScratchFolder()
    try:
        folder = scratch.path / "proofs"
        words = proof_words(results, left, options.words, report=report, folder=folder)
        check_key(words, options.words)
        command = pytest_command(map(str, join_values([*words, *options.words])))
        say(f"proving {many(len(left), 'counterexample')}: this takes minutes")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        code = done.returncode
        if not (folder / EVENTS).is_file():
            raise Refusal(FAILED, f"the proofs came to nothing: their run ended with exit code {code}")
        with added_to(report):
            proved = with_proofs(report, folder, left)
    finally:
        scratch.remove()
    still = sum(case.unfinished is not None for case in proved.cases)
    for one in proved.requirements:
        if one.id in {case.requirement for case in left}:
            say(f"{one.id} {one.verdict.value}: {one.reason}")
    say(f"{many(len(left), 'counterexample')} waited for proof, {still} still do: {report / 'index.html'}")
    return proved.exit_code


def check(report: Path, left: Iterable[Case]) -> None:
    """Raise Refusal or UsageError for a report that cannot be written again: its proofs would be lost."""
    if not report.is_dir():
        raise Refusal(USAGE, f"{report} is not the folder of a report")
    try:
        with interpreting(report):
            events = read_events(report / EVENTS)
            assemble(events)
    except OSError as problem:
        said = "has no events that can be read; those of merged reports are in the folders that were merged"
        raise Refusal(USAGE, f"{report} {said}: {reason_of(problem)}") from problem
    known = {one["case"]["id"] for one in [*events, *cases_that_wait(events)] if one["event"] == "case"}
    for case in left:
        if case.id not in known:
            raise Refusal(USAGE, f"{report}: its events have no case {case.id}, which its results have")
        load_case(report / CASES / f"{case.id}.json")
    for path in (report, report / EVENTS, report / CASES):
        if not os.access(path, os.W_OK):
            raise Refusal(FAILED, f"cannot write {path}")


def check_key(words: list[str], given: list[str]) -> None:
    """Raise Refusal if a server that only the report names would get the user's key: a report may come from anybody."""
    named = names_of(given)
    for name in URLS:
        if os.environ.get(KEY_VARIABLE) and name in words and name not in named:
            url = words[words.index(name) + 1]
            said = f"{KEY_VARIABLE} is set, and the run of this report was on {url}: add {name} if that is your server"
            raise Refusal(USAGE, said)


def names_of(words: Iterable[str]) -> set[str]:
    """Return the options among these words."""
    return {word.partition("=")[0] for word in words}


def proof_words(results: Results, left: Iterable[Case], own: Sequence[str], *, report: Path, folder: Path) -> list[str]:
    """Return the options of the run that proves cases of a report: those of the report's run about its engines.

    pytest's own options are left out: a report may come from anybody, and some of them run code. `own`: what the user
    gave. Raises Refusal if the report has an option of GIVEN_AGAIN and the user did not give it.
    """
    parser = Parser(prog="coldproof", add_help=False, allow_abbrev=False)
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)
    given, _ = parser.parse_known_args(list(map(str, join_values(shlex.split(results.command)[1:]))))
    of_engines = [name_of(option) for option in OPTIONS if option not in OF_DRAWING]
    values = {name: value for name in of_engines if (value := getattr(given, name)) != parser.get_default(name)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    named = names_of(own)
    loaded_here = {name: values.pop(name) for name in GIVEN_AGAIN if name in values}
    foreign = option_words(**{name: value for name, value in loaded_here.items() if option_of(name) not in named})
    if foreign:
        said = "the run of this report loaded what its options name. If that is yours, give them again:"
        raise Refusal(USAGE, f"{said} {shlex.join(['coldproof', 'prove', str(report), *foreign, *own])}")
    layers = tuple(dict.fromkeys(case.layer for case in left if case.layer))
    if layers:
        values["layers"] = layers
    elif given.engine_url is not None and results.calibration is not None:
        values.setdefault("calibration", report / RESULTS)  # which takes minutes on a server
    return ["-q", "-p", "no:cacheprovider", *option_words(**values, prove=report, findings=OFF, report_dir=folder)]


def with_proofs(report: Path, folder: Path, left: list[Case]) -> Results:
    """Add to a report what its proofs showed, write it again, and return its results. `folder`: of the proofs' run."""
    before, shown = read_events(report / EVENTS), events_of(read_lines(folder / EVENTS))
    several = any(case.layer for case in left)
    replaced, concluded = replaced_cases(left, shown), {place(one) for one in shown if has_case(one)}
    refused = {one["became"] for one in shown if one["event"] == "proof" and not one["counts"]}
    cases = [
        moved(msgspec.convert(one["case"], Case), folder, report, layer=one.get("layer", "") if several else "")
        for one in shown
        if one["event"] == "case" and one["case"]["id"] not in refused and place_of_case(one) in concluded
    ]
    ended = last_of(before, "run_finished") or before[-1]
    added: list[Event] = [{"event": "proved", "cases": replaced}]
    added += [{"event": "case", "case": msgspec.to_builtins(case)} for case in cases]
    added += new_verdicts(before, shown, set(replaced))
    added.append({"event": "waivers", "waivers": joined_waivers(before, shown)})
    stamped = [{"event": one["event"], "at": ended["at"], **one} for one in added]
    results = assemble([*before, *stamped])
    records = {"event": "records", "at": ended["at"], "records": msgspec.to_builtins(facts_of(results))}
    with (report / EVENTS).open("ab+") as file:
        if not ends_a_line(file):  # a run that was killed leaves an incomplete one
            file.write(b"\n")
        file.writelines(msgspec.json.encode(one) + b"\n" for one in (*stamped, records))
    statements = {one.id: one.statement for one in results.requirements}
    for case in cases:
        said = statements.get(case.requirement, "")
        write_case_files(case, report, statement=said, environment=results.environment)
    results = assemble(read_events(report / EVENTS))
    write_all(results, report)
    return results


def moved(case: Case, folder: Path, report: Path, *, layer: str) -> Case:
    """Return a case with its layer, and with the command that replays it from the report."""
    replay = case.replay.replace(str(folder), str(report))
    if layer and not case.layer:
        replay = f"{replay} {shlex.join(option_words(layers=layer))}"
    return msgspec.structs.replace(case, replay=replay, layer=layer)


def ends_a_line(file: BinaryIO) -> bool:
    """Return whether a file is empty or ends with the end of a line."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def replaced_cases(left: Iterable[Case], shown: list[Event]) -> list[str]:
    """Return the ids of the unfinished cases that are replaced by what became of them: their tests have a verdict."""
    concluded = {place(one)[1:] for one in shown if has_case(one)}
    became = {one["case"] for one in shown if one["event"] == "proof" and one["counts"]}
    return [one.id for one in left if one.id in became and (one.requirement, one.cell, one.test) in concluded]


def has_case(event: Event) -> bool:
    """Return whether an event is a verdict that rests on a case."""
    return event["event"] == "verdict" and event["case"] is not None


def new_verdicts(before: list[Event], shown: list[Event], replaced: set[str]) -> list[Event]:
    """Return the verdicts of the tests whose counterexamples were proved, with all else that their trials showed.

    A verdict that rests on another case stays if it is the worse one. A test that had none, because its run was killed,
    has that of the proof.
    """
    earlier = {place(one): one for one in before if one["event"] == "verdict"}
    found = []
    for new in filter(has_case, shown):
        old = earlier.get(place(new))
        if old is None:
            found.append({name: value for name, value in new.items() if name not in STAMPS})
            continue
        rests_on_others = old["case"] not in replaced  # also an ERROR, which has no case
        order = list(Verdict)
        stays = rests_on_others and order.index(Verdict(old["verdict"])) >= order.index(Verdict(new["verdict"]))
        others = [one for one in old["further"] if one["case"] not in replaced] + new["further"]
        if stays:
            further = [*others, {"case": new["case"], "verdict": new["verdict"]}]
            found.append({**old, "reason": f"{old['reason']}; besides it, {new['verdict']}: {new['reason']}"})
        else:
            further = [
                *others,
                *([{"case": old["case"], "verdict": old["verdict"]}] if rests_on_others and old["case"] else []),
            ]
            found.append({**old, "verdict": new["verdict"], "reason": new["reason"], "case": new["case"]})
        found[-1] |= {"further": further, "known": [*old["known"], *new["known"]]}
        for stamp in STAMPS:
            found[-1].pop(stamp, None)
    return found


def place(event: Event) -> tuple[str, ...]:
    """Return of which test in which cell and layer a verdict is."""
    return tuple(event.get(name, "") for name in KEY)


def place_of_case(event: Event) -> tuple[str, ...]:
    """Return which test in which cell and layer found the case of an event."""
    return (event.get("layer", ""), *(event["case"][name] for name in KEY[1:]))


def joined_waivers(before: list[Event], shown: list[Event]) -> list[Event]:
    """Return the known issues of a report as its run used them, or its proofs."""
    old, new = ((last_of(events, "waivers") or {}).get("waivers", []) for events in (before, shown))
    used = {waiver_key(one): one["cases"] for one in new if one["state"] == "used"}
    return [
        {**one, "state": "used", "cases": [*one["cases"], *used[waiver_key(one)]]} if waiver_key(one) in used else one
        for one in old
    ]


def waiver_key(waiver: Event) -> tuple[object, ...]:
    """Return what tells a known issue from others."""
    return tuple(waiver[name] for name in ("requirement", "cell", "signature", "finding", "reason"))


def words_of_run(parser: argparse.ArgumentParser) -> None:
    """Declare the words that are passed on to pytest."""
    parser.usage = f"{parser.prog} REPORT [OPTION ...]"
    parser.add_argument("words", nargs="*", help="options of a run, for example --budget 5m")


PROVE = Subcommand(
    "go on with the counterexamples of a report that were put aside for lack of time, and write the report again",
    run,
    argument("report", type=Path, metavar="REPORT", help="the folder of a report"),
    words_of_run,
    described=[run_options],
)
