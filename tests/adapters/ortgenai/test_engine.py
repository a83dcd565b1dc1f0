"""ONNX Runtime GenAI: what a request takes from the sequence before it, options, and how a script uses the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.ortgenai import engine, setup
from coldproof.adapters.ortgenai.engine import OrtGenaiEngine
from coldproof.adapters.ortgenai.generator import Continued, common_prefix
from coldproof.adapters.ortgenai.reproducer import settings
from coldproof.adapters.protocol.engine import EngineStartError, RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.spec.reproduction import RecordedEngine
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model


class Generator:
    """The library's generator: it counts. `calls`: what was asked of it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.calls: list[tuple[str, Any]] = []

    def append_tokens(self, tokens: Any) -> None:
        """Take tokens."""
        self.calls.append(("append", [int(token) for token in tokens[0]]))
        self.tokens += [int(token) for token in tokens[0]]

    def rewind_to(self, length: int) -> None:
        """Drop tokens."""
        self.calls.append(("rewind", length))
        del self.tokens[length:]

    def generate_next_token(self) -> None:
        """Add a token."""
        if self.tokens[-1] == 99:
            raise RuntimeError("99 has no successor")
        self.tokens.append(self.tokens[-1] + 1)

    def get_next_tokens(self) -> list[int]:
        """Return the last token."""
        return self.tokens[-1:]

    def get_sequence(self, _number: int) -> list[int]:
        """Return all tokens."""
        return self.tokens


@pytest.mark.parametrize(
    ("again", "prompt", "calls", "cached"),
    [
        (False, [1, 2, 3, 4, 9], [("append", [9])], 3),  # the library has to compute the KV of 4
        (True, [1, 2, 3, 4, 9], [("rewind", 3), ("append", [4, 9])], 3),
        (False, [1, 2, 7], [("rewind", 2), ("append", [7])], 2),
        (False, [1, 2, 3], [("rewind", 2), ("append", [3])], 2),  # its last token is always computed
        (False, [8, 9], [("rewind", 0), ("append", [8, 9])], 0),
    ],
)
def test_a_request_goes_on_with_the_sequence_before_it(
    again: bool, prompt: list[int], calls: list[tuple[str, Any]], cached: int
) -> None:
    """As far as both agree. Only the rest is appended."""
    generator = Generator()
    continued = Continued(lambda: generator, caching=True, again=again)
    assert continued.begin([1, 2, 3]) == 0
    assert [continued.next()] == [4]
    generator.calls.clear()
    assert continued.begin(prompt) == cached
    assert generator.calls == calls
    assert continued.sequence() == prompt


def test_without_a_cache_each_request_has_a_new_generator() -> None:
    """Its answer is cold."""
    made: list[Generator] = []

    def make() -> Generator:
        made.append(Generator())
        return made[-1]

    continued = Continued(make, caching=False)
    assert [continued.begin([1, 2, 3]) for _ in range(2)] == [0, 0]
    assert [one.calls for one in made] == [[("append", [1, 2, 3])]] * 2


@pytest.mark.parametrize(("one", "other", "shared"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1)])
def test_the_common_prefix(one: list[int], other: list[int], shared: int) -> None:
    """Of two sequences."""
    assert common_prefix(one, other) == shared


def adapter(make: Callable[[], Generator]) -> OrtGenaiEngine:
    """Return an engine over such generators."""
    options = StartOptions(
        model="m",
        adapters=(),
        cell=CELLS["ortgenai"],
        caching=True,
        arguments=(),
        log=Path("log"),
        on_process=lambda _: None,
    )
    return OrtGenaiEngine(options, Continued(make, caching=True))


def test_what_the_library_refuses_ends_one_request() -> None:
    """The next one gets a new generator."""
    tested = adapter(Generator)
    with pytest.raises(RequestRefused, match="99 has no successor"):
        tested.complete(CompletionRequest(model="base", prompt=(98,), max_tokens=3))
    answer = tested.complete(CompletionRequest(model="base", prompt=(5, 6), max_tokens=2))
    assert ([token.id for token in answer.tokens], answer.cached_tokens) == ([7, 8], 0)


def test_a_reset_rewinds_to_the_beginning() -> None:
    """Nothing is cached after it."""
    tested = adapter(Generator)
    request = CompletionRequest(model="base", prompt=(5, 6, 7), max_tokens=2)
    assert [tested.complete(request).cached_tokens for _ in range(2)] == [0, 2]
    assert tested.reset_cache()
    assert tested.complete(request).cached_tokens == 0


@pytest.mark.parametrize("arguments", [("--chunk_size",), ("chunk_size", "3"), ("--chunk_size", "many")])
def test_wrong_options_are_refused(arguments: tuple[str, ...]) -> None:
    """Before anything starts."""
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        setup.options_of(arguments)


def test_a_model_that_is_not_converted_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the converter's log."""
    monkeypatch.setattr(setup.onnx_model, "BUILDER", "no.such.module")
    with pytest.raises(EngineStartError, match=r"the model was not converted: .*log: .*engine\.log"):
        setup.convert(tmp_path, tmp_path / "onnx", tmp_path / "engine.log")


def test_a_script_gets_the_options_of_the_case() -> None:
    """None, where they are not known."""

    def recorded(options: str) -> RecordedEngine:
        return RecordedEngine(
            name="ortgenai", version="0", config={"options": options}, contents=(), generated_model=True, cell=None
        )

    assert settings(recorded('{"chunk_size": 32}')) == {"SETTINGS": {"chunk_size": 32}}
    assert settings(recorded("unknown")) == {"SETTINGS": {}}


@pytest.mark.engine
def test_a_chat_on_a_real_generator(tmp_path: Path) -> None:
    """The next turn equals a cold answer where the last token is given again, and not where it is appended behind it
    (ortgenai/the-last-token-of-an-answer-has-no-kv).
    """
    pytest.importorskip("onnxruntime_genai")
    remembered: dict[Any, Any] = {}
    equal = {}
    for name in ("ortgenai", "ortgenai-again"):
        cell = CELLS[name]
        common = SimpleNamespace(model=str(tiny_model(generated_files())), adapters=(), cell=cell)
        warm, cold = (
            engine.start(
                StartOptions(
                    **vars(common),
                    caching=caching,
                    arguments=cell.arguments,
                    log=tmp_path / "engine.log",
                    on_process=lambda _: None,
                    remembered=remembered,
                )
            )
            for caching in (True, False)
        )
        first = warm.complete(CompletionRequest(model="base", prompt=tuple(range(40, 72)), max_tokens=6))
        turn = (*range(40, 72), *(token.id for token in first.tokens), *range(80, 88))
        answers = [one.complete(CompletionRequest(model="base", prompt=turn, max_tokens=12)) for one in (warm, cold)]
        assert [answer.cached_tokens for answer in answers] == [37, 0]
        equal[name] = [t.id for t in answers[0].tokens] == [t.id for t in answers[1].tokens]
    assert equal == {"ortgenai": False, "ortgenai-again": True}
