"""ONNX Runtime GenAI on a CPU. The generated models are converted to ONNX."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.ortgenai import engine
from coldproof.adapters.ortgenai.onnx_model import AGAIN
from coldproof.adapters.ortgenai.reproducer import ORTGENAI
from coldproof.adapters.ortgenai.setup import PACKAGE, options_of
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.release_package import ReleasePackage

USUAL = (CellTrait.BATCHES, CellTrait.CONVERSATIONS, CellTrait.HITS, CellTrait.ABORTS)
ONE_SEQUENCE = (*USUAL, CellTrait.SMALL_POOL, CellTrait.MIXTURES)
AGAIN_GIVEN = (f"--{AGAIN}", "true")
DRAFTS = ("--ngram_size", "3", "--max_draft_tokens", "4")


def cell(name: str, about: str, *flags: str, traits: tuple[str, ...] = USUAL) -> Cell:
    """Return a cell with these options of a generator."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, alike=False, engine="ortgenai")


CELLS = (
    cell("ortgenai", "a chat is appended behind the last answer", traits=ONE_SEQUENCE),
    cell("ortgenai-again", "the last token of an answer is given again", *AGAIN_GIVEN, traits=ONE_SEQUENCE),
    cell("ortgenai-growing", "KV that grows with its sequence", *AGAIN_GIVEN, "--past_present_share_buffer", "false"),
    cell("ortgenai-chunks", "a prompt is computed in chunks of 32 tokens", *AGAIN_GIVEN, "--chunk_size", "32"),
    cell("ortgenai-drafts", "drafts from the sequence itself (n-grams)", *AGAIN_GIVEN, *DRAFTS),
)

ENGINE = EngineSpec(
    name="ortgenai",
    about="ONNX Runtime GenAI",
    title="ONNX Runtime GenAI",
    cells=CELLS,
    start=engine.start,
    check_arguments=options_of,
    package=f"{PACKAGE} onnx onnx-ir",  # the others convert the model
    reproduction=ORTGENAI,
    known_issues=Path(__file__).with_name("known_issues.toml"),
    releases=ReleasePackage(name=PACKAGE),
)
