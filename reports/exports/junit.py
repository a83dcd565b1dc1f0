"""The run as JUnit XML, for CI systems.

Every verdict other than CONFORMS, KNOWN ISSUE and UNSUPPORTED is a failure or an error. A run that stopped, tested
nothing or is invalid is an error too. Characters that XML 1.0 cannot contain are written out.
"""

from __future__ import annotations

from xml.etree import ElementTree

from coldproof.harness.schema.results import CellResult, RequirementResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import cause_key, fingerprint
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import visible
from coldproof.reports.views import overview

_ELEMENT = {
    Verdict.VIOLATED: "failure",
    Verdict.INCONCLUSIVE: "failure",
    Verdict.NOT_EXERCISED: "failure",
    Verdict.ERROR: "error",
    Verdict.UNSUPPORTED: "skipped",
    Verdict.KNOWN_ISSUE: "skipped",
}


def junit_xml(results: Results) -> str:
    """Return the JUnit file: one test case for each requirement and cell, and one named `run` if the run failed."""
    suite = ElementTree.Element("testsuite", name="coldproof", timestamp=visible(results.started))
    _properties(suite, _run_facts(results))
    failed = overview.failed_selftests(results)
    for test in failed:
        _error(suite, "coldproof.selftest", test.planted, "RUN INVALID", test.said, message=f"RUN INVALID: {test.said}")
    for requirement in results.requirements if not failed else ():
        for row in overview.cell_rows(requirement):
            _test_case(suite, requirement, row, results)
    trouble = _trouble(results)
    if trouble:
        _error(suite, "coldproof", "run", "ERROR", trouble, message=trouble)
    _count(suite, results)
    root = ElementTree.Element("testsuites", suite.attrib | {"name": "coldproof"})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _run_facts(results: Results) -> dict[str, str]:
    return {
        "headline": " ".join([*overview.banners(results), overview.headline(results)]),
        "engine": overview.engine_name(results),
        "profile": results.profile,
        "seed": results.seed,
        "command": results.command,
        "exit_code": str(results.exit_code),
        "coldproof_version": results.coldproof_version,
    }


def _test_case(suite: ElementTree.Element, requirement: RequirementResult, row: CellResult, results: Results) -> None:
    name = f"{requirement.id}[{row.label}] {requirement.title}"
    case = _element(suite, "testcase", classname=f"coldproof.{row.label}", name=name, time=f"{row.seconds:.3f}")
    facts = {"verdict": row.verdict.value, "examples": str(row.examples), "requests": str(row.requests)}
    _properties(case, facts | {f"evidence.{key}": f"{value:.15g}" for key, value in sorted(row.evidence.items())})
    if row.verdict in _ELEMENT:
        message = f"{row.verdict.value}: {row.reason or 'no reason was recorded'}"
        outcome = _element(case, _ELEMENT[row.verdict], message=message, type=row.verdict.value)
        outcome.text = visible("\n".join([message, *_case_lines(requirement, row, results)]))


def _case_lines(requirement: RequirementResult, row: CellResult, results: Results) -> list[str]:
    return [
        f"\n{case.id} ({case.failure_class.value}, cause {fingerprint(cause_key(case))}): {case.sentence}\n"
        f"replay: {command_line(case.replay)}"
        for case in results.cases
        if case.requirement == requirement.id and case.place == row.label
    ]


def _error(suite: ElementTree.Element, group: str, name: str, kind: str, text: str, *, message: str) -> None:
    case = _element(suite, "testcase", classname=group, name=name, time="0.000")
    _element(case, "error", message=message, type=kind).text = visible(text)


def _trouble(results: Results) -> str:
    """Return the problem of the run as a whole; "" if there is none. A suite without test cases must not pass."""
    if results.problem:
        return results.problem
    if not results.complete:
        return "INCOMPLETE RUN: it was interrupted before everything was tested"
    return "" if results.requirements else "nothing was tested"


def _count(suite: ElementTree.Element, results: Results) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for plural, name in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(len(suite.findall(f"testcase/{name}"))))
    suite.set("time", f"{results.duration_s:.3f}")


def _properties(parent: ElementTree.Element, facts: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in facts.items():
        _element(properties, "property", name=name, value=value)


def _element(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {key: visible(value) for key, value in attributes.items()})
