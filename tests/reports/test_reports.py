"""The reports agree with the results, escape what an engine wrote, and never look like a pass without one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
from support import report_samples as samples
from support.page import Page, contrast
from support.paths import ROOT

from coldproof.harness.cli import main as command_line
from coldproof.harness.schema.case import Reproduction
from coldproof.harness.schema.results import Results, SelfTestRow, encode, read_results, write_results
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.exports.junit import junit_xml
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.exports.write import write_all
from coldproof.reports.files.own_folder import MARKER
from coldproof.reports.format.markdown import code, escaped
from coldproof.reports.format.text import duration, number, tail, token_text, visible, web_link
from coldproof.reports.run_report.run_report import LARGEST, render_html
from coldproof.reports.views.overview import GLYPH

FILES = ("badge.svg", MARKER, "ctrf.json", "index.html", "junit.xml", "results.json", "summary.md")


@pytest.fixture(scope="module")
def hostile() -> Results:
    return samples.poisoned(samples.HOSTILE + samples.SURROGATE)


@pytest.fixture(scope="module")
def hostile_page(hostile: Results) -> Page:
    return Page(render_html(hostile))


def invalid(**changes: object) -> Results:
    """Return a run whose detector missed a planted bug."""
    rows = [
        SelfTestRow(planted="none", caught=True, said="no finding"),
        SelfTestRow(planted="stale blocks", caught=False, said="no finding where one was due"),
    ]
    return msgspec.structs.replace(samples.results(samples.case()), selftest=rows, exit_code=3, **changes)


# The schema


@pytest.mark.parametrize("results", [samples.results(), samples.results(samples.case()), samples.many(7)])
def test_results_survive_a_file(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(results, path)
    assert read_results(path) == results
    assert path.read_bytes() == encode(results)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("complete",), "yes"),
        (("requirements", 0, "verdict"), "PASSED"),
        (("cases", 0, "failure_class"), "numeric"),
        (("cases", 0, "requests", 0, "sent"), None),
        (("totals", "requests"), 1.5),
    ],
)
def test_what_does_not_fit_the_schema_is_not_read(path: tuple[str | int, ...], value: object, tmp_path: Path) -> None:
    data = msgspec.to_builtins(samples.results(samples.case()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    with pytest.raises(msgspec.ValidationError):
        read_results(file)


def test_a_value_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(samples.results(), duration_s=float("nan"))
    with pytest.raises(msgspec.ValidationError):
        write_all(broken, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [MARKER]


def test_the_worst_verdict_ignores_an_unsupported_cell() -> None:
    assert worst([]) is Verdict.NOT_EXERCISED
    assert worst([Verdict.UNSUPPORTED]) is Verdict.UNSUPPORTED
    assert worst([Verdict.UNSUPPORTED, Verdict.CONFORMS]) is Verdict.CONFORMS
    assert worst([Verdict.ERROR, Verdict.VIOLATED, Verdict.KNOWN_ISSUE]) is Verdict.VIOLATED


# The page: safe


def test_hostile_text_makes_no_element_and_no_handler(hostile_page: Page) -> None:
    tags = [tag for tag, _ in hostile_page.elements]
    assert tags.count("script") == tags.count("style") == 1
    assert not {"img", "iframe", "object", "embed", "base", "link"} & set(tags)
    names = {name for _, attributes in hostile_page.elements for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"style", "src", "srcset", "srcdoc", "action", "formaction", "xlink:href"}


def test_no_hostile_text_loses_the_nesting(hostile_page: Page) -> None:
    assert hostile_page.open == []


def test_hostile_text_is_shown_as_text(hostile_page: Page) -> None:
    for part in (samples.SCRIPT, samples.IMAGE, "{{7*7}}", "⟨ESC⟩[31mred", "⟨U+202E⟩gnp.exe⟨U+2066⟩", "NUL⟨NUL⟩"):
        assert part in hostile_page.text
    assert "half ⟨U+D83D⟩ pair" in hostile_page.text
    assert samples.SCRIPT not in "".join(hostile_page.raw["script"] + hostile_page.raw["style"])


def test_no_character_that_cannot_be_seen_reaches_the_page(hostile: Results) -> None:
    page = render_html(hostile)
    assert page == visible(page)
    page.encode()


def test_ids_are_unique_and_links_within_the_page_lead_somewhere() -> None:
    twins = samples.results(samples.case("a b"), samples.case("a/b"), samples.case("a b"))
    page = Page(render_html(twins))
    ids = list(page.attributes("id"))
    assert len(ids) == len(set(ids))
    inner = [link[1:] for link in page.attributes("href") if link.startswith("#")]
    assert inner
    assert set(inner) <= set(ids)
    for name in ("aria-labelledby", "data-copies"):
        assert {part for value in page.attributes(name) for part in value.split()} <= set(ids)


def test_the_page_loads_nothing() -> None:
    source = render_html(samples.results(samples.case(known_issue="https://example.org/issues/7")))
    page = Page(source)
    assert not list(page.attributes("src"))
    assert "url(" not in source
    assert "@import" not in source
    remote = [link for link in page.attributes("href") if "//" in link]
    assert remote
    for tag, attributes in page.elements:
        if "//" in attributes.get("href", ""):
            assert tag == "a"
            assert attributes["rel"] == "noreferrer noopener"


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "http://example.org", "https://", 'https://a"b', "https://a b", "data:text/html,x", " "],
)
def test_only_plain_https_becomes_a_link(address: str) -> None:
    page = Page(render_html(samples.results(waivers=[samples.waiver("used", link=address)])))
    assert web_link(address) == ""
    assert address not in list(page.attributes("href"))
    assert address.strip() in page.text


def test_the_policy_allows_just_our_style_and_script(hostile_page: Page) -> None:
    policies = [a["content"] for tag, a in hostile_page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("style", "script"):
        content = "".join(hostile_page.raw[kind]).encode()
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_templates_let_no_data_through_unescaped() -> None:
    for file in (ROOT / "reports").rglob("*.j2"):
        source = file.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|autoescape|Markup", source), file.name
    script = (ROOT / "reports" / "page" / "templates" / "script.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", script)


# The page: reproducible, bounded, readable


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    results = samples.many(3)
    backwards = msgspec.structs.replace(
        results,
        environment=dict(reversed(results.environment.items())),
        totals=dict(reversed(results.totals.items())),
    )
    write_all(results, tmp_path / "a")
    write_all(backwards, tmp_path / "b")
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_page_made_again_from_its_file_is_the_same(hostile: Results, tmp_path: Path) -> None:
    for name, results in (("hostile", hostile), ("one", samples.results(samples.case()))):
        write_all(results, tmp_path / name)
        again = tmp_path / name / "again.html"
        assert command_line.main(["render", str(tmp_path / name / "results.json"), "-o", str(again)]) == 0
        assert again.read_bytes() == (tmp_path / name / "index.html").read_bytes()


def test_a_request_that_overlaps_a_change_is_marked_as_not_compared() -> None:
    """The text replaces "correct" for an answer that is not a known one."""
    first = samples.request(0, correct=None, overlaps_change=True, answers_as="")
    page = Page(render_html(samples.results(samples.case(requests=[first, samples.request(1)]))))
    assert "correct: overlaps an adapter change, not compared here" in page.text


def test_fifty_violations_stay_small_and_folded() -> None:
    source = render_html(samples.many(50))
    assert len(source.encode()) <= LARGEST
    page = Page(source)
    assert len([i for tag in ("div", "tr") for i in page.attributes("id", tag=tag) if i.startswith("case-")]) == 50
    heads = source.split('class="onecause"')[1:]
    assert [bool(re.search(r"<details open>", head[:400])) for head in heads] == [True, False]


def test_every_text_colour_can_be_read_in_both_themes() -> None:
    style = (ROOT / "reports" / "page" / "templates" / "style.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in style.split("@media (prefers")[:2])
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        inks = [name for name in theme if name.startswith("v-") or name in ("ink", "quiet", "link")]
        assert len(inks) == len(Verdict) + 3
        for ink in inks:
            for back in ("back", "soft", "hit"):
                assert contrast(theme[ink], theme[back]) >= 4.5, (ink, back)


# The page: says what the results say


def test_the_headline_the_counts_and_the_facts_are_there() -> None:
    results = samples.results(samples.case())
    page = Page(render_html(results))
    for fact in (
        "vLLM 0.32.0 does not conform: 1 new cause broke 1 of 8 requirements.",
        results.command,
        results.seed,
        "vLLM 0.32.0",
        "6\u202fmin 53",
        "1: a requirement is",
    ):
        assert re.sub(r"\s+", " ", fact) in page.text
    counts = page.text
    for verdict, count in (("VIOLATED", 1), ("CONFORMS", 3), ("KNOWN ISSUE", 0), ("ERROR", 1)):
        assert f"{count} {GLYPH[Verdict(verdict)]} {verdict}" in counts
    assert "INCOMPLETE RUN" not in page.text
    assert "RUN INVALID" not in page.text


def test_a_case_shows_everything_needed_to_believe_it() -> None:
    case = samples.case(history_dependent=True)
    text = Page(render_html(samples.results(case))).text
    wanted = [
        case.sentence, *case.findings, case.replay, "python cases/7c21a0f3.py", "11 of 12 runs failed",
        "fresh engine, 3 of 3 replays failed", "caching off, 0 of 3 replays failed", case.reproduction.note,
        "gives the expected answer, too", "reload `tenant` in place", "0.450 – 0.830", "matches adapter A, which",
        "expected exactly 0", "too many cached tokens", "◀ first difference", "902 ⏎", "102 ·w2", "Not self-contained",
        "INFO prefix cache hit 112 tokens", "sha256:9f2c11d0", "stale state",
    ]  # fmt: skip
    assert [part for part in wanted if part not in text] == []
    assert text.count("◀ first difference") == 1


def test_untested_requirements_are_reported() -> None:
    untried = Reproduction(while_shrinking_failed=1, while_shrinking_tries=1)
    text = Page(render_html(samples.results(samples.case(reproduction=untried)))).text
    assert "1 of 1 run failed. On a fresh engine, no replay was made. With prefix caching off, no replay" in text
    assert "not checked on a fresh engine" in text


def test_a_cached_count_below_its_bound_is_marked() -> None:
    row = samples.request(0, cached_tokens=16, cached_at_least=32, cached_at_most=64)
    text = Page(render_html(samples.results(samples.case(requests=[row])))).text
    assert "16expected 32 to 64✕ too few cached tokens" in text


def test_a_case_with_nothing_but_its_sentence_is_shown() -> None:
    bare = samples.case(
        steps=[], requests=[], tokens=[], findings=[], failing_request=None, first_difference=None, log_tail=""
    )
    page = Page(render_html(samples.results(bare)))
    assert bare.sentence in page.text
    assert not [name for name in page.attributes("class") if name == "timeline"]


def test_the_timeline_keeps_the_failing_request_among_many() -> None:
    rows = [samples.request(number) for number in range(200)]
    source = render_html(samples.results(samples.case(requests=rows, failing_request=150)))
    drawing = source[source.index("<svg") : source.index("</svg>")]
    assert "r150 tenant" in drawing
    assert "r151 tenant" not in drawing
    assert "shows 48 of 200 requests" in Page(source).text


def test_what_was_not_shown_is_listed_with_its_reason() -> None:
    page = Page(render_html(samples.results()))
    part = page.text[page.text.index("Requirements and cells without") : page.text.index("Entries of the known-issues")]
    for reason in ("no preemption occurred", "needs KV events", "below the noise floor", "port in use"):
        assert reason in part


def test_waivers_are_listed_expired_first() -> None:
    page = Page(render_html(samples.results())).text
    places = [page.index(f"a reason for the {state} one") for state in ("expired", "stale", "used")]
    assert places == sorted(places)


def test_known_issues_are_counted_apart_from_violations() -> None:
    """A reader who sees 21 violations next to a conforming verdict trusts neither."""
    known = samples.case("LORA-3-00000000", known_issue="https://example.org/issues/7")
    for cases, label in (
        ([known, samples.case()], "Violations (1) and known issues (1)"),
        ([known], "Violations (0) and known issues (1)"),
        ([samples.case()], "Violations (1)"),
        ([], "Violations (0)"),
    ):
        assert f">{label}</a>" in render_html(samples.results(*cases))


def test_a_known_issue_is_marked_as_one() -> None:
    page = Page(render_html(samples.results(samples.case(known_issue="https://example.org/issues/7"))))
    assert "KNOWN ISSUE Waived by the known-issues file: https://example.org/issues/7" in page.text


def test_an_interrupted_run_is_marked_everywhere() -> None:
    results = samples.results(complete=False, problem="The engine did not start.")
    for view in (render_html(results), junit_xml(results), summary_markdown(results)):
        assert "INCOMPLETE RUN" in view
        assert "The engine did not start" in view


def test_an_invalid_run_shows_no_verdict() -> None:
    text = Page(render_html(invalid())).text
    assert "RUN INVALID" in text
    assert "stale blocks" in text
    before_legend = text[: text.index("What the verdicts mean")]
    assert not [v for v in Verdict if v.value in before_legend.replace("RUN INVALID", "")]
    assert samples.case().sentence not in text
    for view in (junit_xml(invalid()), summary_markdown(invalid())):
        assert "RUN INVALID" in view
        assert "LORA-1" not in view
        assert "no finding where one was due" in view


def test_a_run_that_never_reached_an_engine_still_renders() -> None:
    empty = samples.results(
        engine=None, calibration=None, requirements=[], selftest=[], waivers=[], totals={}, complete=False
    )
    text = Page(render_html(empty)).text
    assert "so nothing is verified" in text
    assert "The self-test did not run" in text
    assert "so nothing is verified" in summary_markdown(empty)


# JUnit


def _outcomes(results: Results) -> dict[str, tuple[str, ElementTree.Element]]:
    suite = ElementTree.fromstring(junit_xml(results)).find("testsuite")
    assert suite is not None
    found = {}
    for case in suite.iter("testcase"):
        outcome = next((child for child in case if child.tag != "properties"), None)
        found[case.attrib["name"].split(" ")[0]] = ("pass" if outcome is None else outcome.tag, case)
    for plural, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[plural]) == sum(tag == kind for tag, _ in found.values())
    assert int(suite.attrib["tests"]) == len(found)
    return found


def test_junit_fails_for_every_requirement_not_shown() -> None:
    found = {name: tag for name, (tag, _) in _outcomes(samples.results(samples.case())).items()}
    assert found == {
        "LORA-1[hybrid]": "pass",
        "LORA-1[tiny-llama]": "failure",
        "GROUND-1[tiny-llama]": "pass",
        "SALT-1[tiny-llama]": "pass",
        "SALT-1[hybrid]": "pass",
        "REUSE-1[tiny-llama]": "pass",
        "PRESS-3[tiny-llama]": "failure",
        "EVENT-1[tiny-llama]": "skipped",
        "CHAT-1[tiny-llama]": "failure",
        "PRESS-1[tiny-llama]": "error",
        "run": "pass",
    }


def test_junit_carries_reason_evidence_and_replay() -> None:
    case = _outcomes(samples.results(samples.case()))["LORA-1[tiny-llama]"][1]
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "VIOLATED"
    assert failure.attrib["message"] == "VIOLATED: 1 distinct counterexamples"
    assert samples.case().replay in (failure.text or "")
    facts = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    assert facts["evidence.cached tokens"] == "20480"
    assert facts["verdict"] == "VIOLATED"


def test_junit_skips_a_known_issue_with_its_reason() -> None:
    row = samples.cell(verdict=Verdict.KNOWN_ISSUE, reason="waived until 2027-01-31")
    results = samples.results(requirements=[samples.requirement("CHAT-2", "hits what decode wrote", row)])
    tag, case = _outcomes(results)["CHAT-2[tiny-llama]"]
    skipped = case.find("skipped")
    assert tag == "skipped"
    assert skipped is not None
    assert skipped.attrib["message"] == "KNOWN ISSUE: waived until 2027-01-31"


@pytest.mark.parametrize(
    "changes",
    [{"problem": "out of memory"}, {"complete": False}, {"requirements": []}, {"engine": None, "complete": False}],
)
def test_junit_of_a_broken_run_has_an_error(changes: dict[str, object]) -> None:
    assert _outcomes(samples.results(**changes))["run"][0] == "error"


def test_junit_of_an_invalid_run_has_errors_only() -> None:
    assert {tag for tag, _ in _outcomes(invalid()).values()} == {"error"}


def test_a_requirement_whose_verdict_no_cell_has_keeps_it() -> None:
    odd = msgspec.structs.replace(samples.requirement("LORA-2", "x"), verdict=Verdict.ERROR, reason="teardown broke")
    assert _outcomes(samples.results(requirements=[odd]))["LORA-2[(all"][0] == "error"
    assert "teardown broke" in summary_markdown(samples.results(requirements=[odd]))


def test_hostile_text_is_legal_xml_and_kept(hostile: Results) -> None:
    source = junit_xml(hostile)
    assert source == visible(source)
    root = ElementTree.fromstring(source)
    assert any(samples.SCRIPT in (failure.text or "") for failure in root.iter("failure"))


# The summary


def test_the_summary_names_violations_waivers_and_gaps() -> None:
    text = summary_markdown(samples.results(samples.case()))
    states = ("expired on 2027-01-31: it no longer waives anything", "stale: the known issue did not occur ")
    for part in ("**new**", "`coldproof replay", *states, "no preemption occurred"):
        assert part in text
    assert "112 of its 116 prompt tokens" in text


def test_a_known_issue_is_no_violation_in_the_summary() -> None:
    text = summary_markdown(samples.results(samples.case(known_issue="x")))
    (line,) = (line for line in text.splitlines() if "Request r3" in line)
    assert "**new**" not in line


@pytest.mark.parametrize("text", [samples.HOSTILE, "x" * 5000, "\u20ac" * 5000, "<" * 5000])
def test_the_summary_is_bounded(text: str) -> None:
    cases = [samples.case(f"{i}", signature=f"{i}", sentence=f"{text} {i}") for i in range(300)]
    summary = summary_markdown(samples.results(*cases, problem=text))
    assert len(summary.encode()) <= 8000
    assert "more lines, in index.html" in summary
    assert len(summary_markdown(samples.poisoned(text)).encode()) <= 8000


def test_hostile_text_is_inert_in_the_summary(hostile: Results) -> None:
    text = summary_markdown(hostile)
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "<" not in outside
    assert "&lt;script&gt;" in outside
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("[x](javascript:y)", r"\[x\]\(javascript:y\)"),
        ("![i](http://e)", r"\!\[i\]\(http\://e\)"),
        ("line\n# head", r"line \# head"),
        ("`c` *b* _i_ ~s~ @who $m$", r"\`c\` \*b\* \_i\_ \~s\~ \@who \$m\$"),
        ("&lt;b&gt; <b>", "&amp;lt;b&amp;gt; &lt;b&gt;"),
        ("www.example.org", r"www\.example.org"),
    ],
)
def test_markdown_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("a`b", "``a`b``"), ("`", "`` ` ``"), ("a\nb", "`a b`")])
def test_code_spans_cannot_be_left(text: str, span: str) -> None:
    assert code(text) == span


# Words and figures


def test_invisible_characters_are_written_out() -> None:
    assert visible("a\r\nb\tc") == "a\nb\tc"
    assert visible("\r\x00\x7f\x9b\u200b\ufeff\ufffe\U0001ffff") == (
        "⟨CR⟩⟨NUL⟩⟨U+007F⟩⟨U+009B⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+FFFE⟩⟨U+1FFFF⟩"
    )
    assert visible("naïve 漢字 🙂") == "naïve 漢字 🙂"
    assert token_text(" a\n\t") == "·a⏎⇥"


def test_figures_and_times() -> None:
    assert [number(x) for x in (0, 1234567, 0.43751, 12.0, None)] == ["0", "1\u202f234\u202f567", "0.438", "12", "–"]
    said = [duration(x) for x in (0.0421, 0.9996, 14.21, 99.96, 412.7, 7260.0, None)]
    assert [x.replace("\u202f", " ") for x in said] == [
        "42 ms", "1 s", "14.2 s", "1 min 40 s", "6 min 53 s", "2 h 01 min", "–"
    ]  # fmt: skip


def test_a_log_is_cut_at_its_head_and_loses_its_colours() -> None:
    assert tail("\n".join(map(str, range(500)))).splitlines() == [str(n) for n in range(300, 500)]
    assert len(tail("x" * 100_000)) == 20_000
    assert tail("\x1b[31mERROR\x1b[0m") == "ERROR"


# Files and the command line


def test_all_files_are_written_and_nothing_else(hostile: Results, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    write_all(hostile, folder)
    assert tuple(sorted(file.name for file in folder.iterdir())) == FILES
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in folder.iterdir())
    assert "half \ufffd pair" in read_results(folder / "results.json").headline


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_all(samples.results(), tmp_path / "file")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_all(samples.results(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(msgspec.ValidationError):
        write_all(samples.results(duration_s=float("inf")), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_render_writes_beside_its_input(tmp_path: Path) -> None:
    write_results(samples.results(), tmp_path / "results.json")
    assert command_line.main(["render", str(tmp_path / "results.json")]) == 0
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == render_html(samples.results())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "truncated"),
        (b"{nope", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"schema_version": 99}', "schema_version is 99"),
        (b'{"schema_version": 2}', "missing required field"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_4(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "results.json"
    if content is not None:
        source.write_bytes(content)
    assert command_line.main(["render", str(source)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err
    assert "results.json" in said.err
    assert not (tmp_path / "index.html").exists()


def test_a_page_that_cannot_be_written_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(samples.results(), tmp_path / "results.json")
    assert command_line.main(["render", str(tmp_path / "results.json"), "-o", str(tmp_path / "no" / "x.html")]) == 3
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["draw"], ["render"]])
def test_wrong_usage_is_exit_code_4(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_the_schema_is_printed_and_accepts_what_we_write() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "coldproof", "schema"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    schema = json.loads(ran.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    stored = json.loads(encode(samples.results(samples.case())))
    jsonschema.validate(stored, schema)
    stored["cases"][0]["failure_class"] = "numeric"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(stored, schema)
