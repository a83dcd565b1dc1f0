"""The run as JUnit XML, for CI systems.

Every verdict other than CONFORMS, KNOWN ISSUE and UNSUPPORTED is a failure or an error. A run that stopped, tested
nothing or is invalid is an error too. Characters that XML 1.0 cannot contain are written out.
"""

from __future__ import annotations

from xml.etree import ElementTree

from coldproof.harness.schema.results import Results
from coldproof.reports.exports.reported_tests import Outcome, ReportedTest, reported_tests, run_facts
from coldproof.reports.format.text import visible

_ELEMENT = {Outcome.FAILED: "failure", Outcome.ERROR: "error", Outcome.SKIPPED: "skipped"}


def junit_xml(results: Results) -> str:
    """Return the JUnit file: one test case for each requirement and cell, and one named `run`."""
    tests = reported_tests(results)
    suite = ElementTree.Element("testsuite", name="coldproof", timestamp=visible(results.started))
    _properties(suite, run_facts(results))
    for test in tests:
        _test_case(suite, test)
    suite.set("tests", str(len(tests)))
    for plural, outcome in (("failures", Outcome.FAILED), ("errors", Outcome.ERROR), ("skipped", Outcome.SKIPPED)):
        suite.set(plural, str(sum(test.outcome is outcome for test in tests)))
    suite.set("time", f"{results.duration_s:.3f}")
    root = ElementTree.Element("testsuites", suite.attrib | {"name": "coldproof"})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _test_case(suite: ElementTree.Element, test: ReportedTest) -> None:
    case = _element(
        suite, "testcase", classname=".".join(test.group), name=test.name, time=f"{test.seconds:.3f}"
    )  # fmt: skip
    if test.facts:
        _properties(case, test.facts)
    if test.outcome in _ELEMENT:
        outcome = _element(case, _ELEMENT[test.outcome], message=test.message, type=test.kind)
        outcome.text = visible("\n\n".join([test.message, *test.details]))


def _properties(parent: ElementTree.Element, facts: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in facts.items():
        _element(properties, "property", name=name, value=value)


def _element(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {key: visible(value) for key, value in attributes.items()})
