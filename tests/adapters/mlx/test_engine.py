"""mlx-lm's server takes texts: prompts and answers of printable tokens are read as tokens, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coldproof.adapters.mlx.client import BASE_MODEL, MlxAdapters
from coldproof.adapters.mlx.reproducer import command, settings
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.server.plain_answers import PlainReader, text_of
from coldproof.adapters.spec.reproduction import RecordedEngine

PROMPT = tuple(map(ord, "a prompt"))
SCORED = ResponseOptions(logprobs=True)


def read(*events: object, tokens: int = 3, options: ResponseOptions | None = None) -> PlainReader:
    """Return a reader that has read these events of an answer to PROMPT."""
    reader = PlainReader(None)
    reader.expect(
        CompletionRequest(model=BASE_MODEL, prompt=PROMPT, max_tokens=tokens, options=options or ResponseOptions())
    )
    for event in events:
        reader.take(json.dumps(event))
    return reader


def part(text: str, end: str | None = None) -> dict[str, object]:
    """Return an event of a stream."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": end}]}


def usage(answer: int, *, prompt: int = len(PROMPT), cached: int = 5) -> dict[str, object]:
    """Return the event with the counts."""
    details = {"cached_tokens": cached}
    return {
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": details},
    }


def test_the_characters_of_an_answer_are_its_tokens() -> None:
    """The counts agree, so that the tokenizer has one token for each character."""
    reader = read(part("x"), part("yz", "length"), usage(3))
    answer = reader.completion()
    assert reader.error is None
    assert [token.id for token in answer.tokens] == list(map(ord, "xyz"))
    assert (answer.cached_tokens, answer.finish_reason, answer.text) == (5, "length", "xyz")


def test_a_space_at_the_start_is_added_again() -> None:
    """The server leaves it out of the text and counts it. Any other difference makes the answer unreadable."""
    reader = read(part("yz", "length"), usage(3))
    assert [token.id for token in reader.completion().tokens] == list(map(ord, " yz"))
    assert reader.error is None
    alone = read(part("", "length"), usage(1), tokens=1)
    assert [token.id for token in alone.completion().tokens] == [ord(" ")]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"answer": 2}, "counted 2 tokens in the answer, of which 3 are known"),
        ({"answer": 5}, "counted 5 tokens in the answer"),
        ({"answer": 3, "prompt": 7}, "counted 7 tokens in the prompt, of which 8 are known"),
    ],
)
def test_a_server_with_other_tokens_gives_no_answer(counts: dict[str, int], words: str) -> None:
    """Its characters are not taken for tokens."""
    reader = read(part("xyz", "length"), usage(**counts))
    assert words in (reader.error or "")
    assert reader.status == 501


def test_scores_come_with_the_ids_of_their_tokens() -> None:
    """The whole response has them, and the text is not read."""
    tops = [{"id": 120, "logprob": -0.5}, {"id": 7, "logprob": -2.0}]
    content = [{"id": 120, "logprob": -0.5, "top_logprobs": tops}, {"id": 300, "logprob": -1.0, "top_logprobs": []}]
    choice = {"index": 0, "text": "x?", "finish_reason": "length", "logprobs": {"content": content}}
    reader = read({"choices": [choice], "usage": usage(2)["usage"]}, tokens=2, options=SCORED)
    answer = reader.completion()
    assert [(token.id, token.logprob, token.gap) for token in answer.tokens] == [(120, -0.5, 1.5), (300, -1.0, None)]


def test_only_printable_tokens_are_sent() -> None:
    """Another token has no text of one character."""
    assert text_of(PROMPT) == "a prompt"
    with pytest.raises(RequestRefused, match="no printable character"):
        text_of((*PROMPT, 10))


def test_a_request_names_the_folder_of_its_adapter() -> None:
    """And the path of the model, or the server's own name of it."""
    adapters = MlxAdapters(["one", "two"], ["/f/one", "/f/two"], "/m")
    adapters.bound["tenant"] = 1
    assert adapters.choice(BASE_MODEL) == {"model": "default_model"}
    assert adapters.choice("tenant") == {"model": "/m", "adapters": "/f/two"}
    unnamed = MlxAdapters(["one"], ["/f/one"])
    unnamed.bound["tenant"] = 0
    assert unnamed.choice("tenant") == {"model": "default_model", "adapters": "/f/one"}
    with pytest.raises(RequestRefused, match="no adapter has the name"):
        adapters.choice("nobody")


def test_a_script_starts_the_server_of_its_case_and_one_without_a_cache() -> None:
    """With the model that it writes. Without a command, it asks for a server."""
    line = "mlx_lm.server --model /c/models/0 --host 127.0.0.1 --port 4711 --draft-model /c/models/0"
    engine = RecordedEngine(
        name="mlx", version="0", config={"command": line}, contents=(), generated_model=True, cell=None
    )
    assert command(engine) == (
        "mlx_lm.server --model coldproof-files/model --host 127.0.0.1 --port 8000 --draft-model coldproof-files/model"
    )
    both = settings(engine)
    assert "python -m mlx_lm server --model coldproof-files/model" in str(both["COMMAND"])
    assert str(both["COLD_COMMAND"]).endswith("--prompt-cache-size 0")
    none = RecordedEngine(name="mlx", version="0", config={}, contents=(), generated_model=True, cell=None)
    assert settings(none) == {"NAMED": True, "COMMAND": "", "COLD_COMMAND": ""}


def test_the_adapters_are_those_of_the_script(tmp_path: Path) -> None:
    """A script writes the same files as the engine's start does: both transpose the matrices of the recipe."""
    load_file = pytest.importorskip("safetensors.numpy").load_file
    from coldproof.adapters.common.tiny_model import make_adapter, make_model
    from coldproof.adapters.mlx import files

    make_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    make_adapter(tmp_path / "peft", config, seed=3, rank=4)
    files.write_adapter(tmp_path / "peft", tmp_path / "mlx", layers=config["num_hidden_layers"])
    ours, theirs = load_file(tmp_path / "peft" / files.PEFT), load_file(tmp_path / "mlx" / files.MLX)
    assert len(ours) == len(theirs)
    name = "model.layers.0.self_attn.q_proj"
    assert (theirs[f"{name}.lora_a"] == ours[f"base_model.model.{name}.lora_A.weight"].T).all()
    written = json.loads((tmp_path / "mlx" / files.CONFIG).read_text())
    assert written["lora_parameters"]["scale"] == 1.0
    assert "self_attn.q_proj" in written["lora_parameters"]["keys"]
