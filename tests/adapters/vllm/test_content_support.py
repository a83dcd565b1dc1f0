"""Which content a server accepts, by the files of its model and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.adapters.common.image_model import IMAGE_TOKENS, SIDE
from coldproof.adapters.common.vision_model import make_vision_model
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.server.content import ARGUMENTS_FLAG, TRUST_FLAG
from coldproof.adapters.vllm import content_support
from coldproof.adapters.vllm.content_support import EMBEDS_FLAG, IMAGES, PRINTABLE

SHAPE = EngineShape(
    block_size=16, pool_blocks=None, max_model_tokens=512, adapter_slots=None, prefix_caching=True, row_width=None
)
ROUTES = {"/reset_encoder_cache": {}}


def found(model: Path, *command: str, offset: int = 0) -> tuple[EngineShape, dict[Capability, Support]]:
    """Return shape and capabilities of a server whose tokenizer gives each character's number plus `offset`."""
    answer = SimpleNamespace(status_code=200, content=json.dumps({"paths": ROUTES}).encode())
    client: Any = SimpleNamespace(
        get=lambda _path: answer, tokens_of=lambda _model, text: tuple(ord(one) + offset for one in text)
    )
    shape, support = content_support.of_server(str(model), command, client, SHAPE)
    return shape, dict(support)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("content") / "model"
    make_vision_model(folder, layers=1, hidden=32)
    return folder


def test_a_model_with_images(model: Path) -> None:
    """Sizes are known, and resets follow from the listed routes. Processor arguments need a flag."""
    shape, support = found(model, TRUST_FLAG)
    assert (shape.image, shape.row_width) == (ImageShape(SIDE, IMAGE_TOKENS), None)
    present = {one for one, what in support.items() if what.present}
    assert present == {*IMAGES, Capability.RESET_ENCODER} - {Capability.PROCESSOR_ARGUMENTS}


def test_arguments_of_the_processor_by_the_flag(model: Path) -> None:
    """A server for content gets the flag if its version is known to have it."""
    _, support = found(model, TRUST_FLAG, ARGUMENTS_FLAG)
    assert support[Capability.PROCESSOR_ARGUMENTS].present
    assert content_support.flags(()) == []


@pytest.mark.parametrize(("version", "flags"), [("0.31.0", []), ("0.32.0", [ARGUMENTS_FLAG]), ("", [ARGUMENTS_FLAG])])
def test_the_flag_of_known_versions(version: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without the flag would not start with it."""
    monkeypatch.setattr(content_support, "installed_version", lambda: version)
    assert content_support.flags((TRUST_FLAG,)) == flags


def test_rows_by_the_flag(tmp_path: Path) -> None:
    """In the parts of a chat there are no tokens under the embeddings."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 64}')
    shape, support = found(tmp_path, EMBEDS_FLAG, TRUST_FLAG)
    assert (shape.image, shape.row_width) == (None, 64)
    present = {one for one, what in support.items() if what.present}
    assert present == {Capability.EMBEDDING_ROWS}
    assert found(tmp_path, TRUST_FLAG)[0].row_width is None


@pytest.mark.parametrize(("command", "offset"), [((), 0), ((TRUST_FLAG,), 1)], ids=["no template", "other tokens"])
def test_what_cannot_be_sent_exactly_is_not_sent(model: Path, command: tuple[str, ...], offset: int) -> None:
    """If the prompt had other tokens than the oracle's, there would be a false positive."""
    shape, support = found(model, *command, offset=offset)
    assert shape.image is None
    assert support[Capability.IMAGES].present is False
    assert "parts of a chat" in support[Capability.IMAGES].evidence


def test_printable_tokens_are_those_of_the_workloads() -> None:
    """The text of a prompt consists of these tokens and the token 0."""
    assert (PRINTABLE[0], PRINTABLE[-1]) == (32, 126)
