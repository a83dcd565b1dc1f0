"""The process of OpenVINO GenAI's pipeline, which may crash: `python -m coldproof.adapters.openvino.worker SOCKET`.

The first message has the arguments of `Worker`. Every other message is a method of `Worker` with its arguments. The
reply is its return value or the engine's error. The worker does nothing between two messages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.openvino.ir_model import CONFIG_FILE, write_model
from coldproof.adapters.openvino.releases import NOT_REPORTED, Release, takes_images
from coldproof.adapters.openvino.setup import (
    DEVICE,
    INT8,
    PACKAGE,
    THREADS,
    Output,
    PipelineFacts,
    StepResult,
    sees,
    settings,
)
from coldproof.adapters.openvino.vision_ir import write_vision_model

OVER = ("FINISHED", "IGNORED")


class Worker:
    """One pipeline. Raises what the engine raises.

    `folder`: where to write the model in the engine's format. `words`: the arguments of the options.
    """

    def __init__(self, model: str, folder: str, adapters: list[str], words: list[str], caching: bool) -> None:
        self.genai, self.openvino, self.numpy = (
            importlib.import_module(name) for name in ("openvino_genai", "openvino", "numpy")
        )
        self.release = Release(importlib.metadata.version(PACKAGE))
        self.handles: dict[int, Any] = {}
        seeing = sees(model, words) and takes_images(self.genai.ContinuousBatchingPipeline)
        if seeing:
            write_vision_model(Path(model), Path(folder))
        else:
            write_model(Path(model), Path(folder), int8=INT8 in words)
        self.scheduler, properties = settings(self.genai, words, caching=caching)
        self.adapters = [self.genai.Adapter(Path(path) / "adapter_model.safetensors") for path in adapters]
        given: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS, **properties}
        if self.adapters:
            given["adapters"] = self.genai.AdapterConfig(self.adapters)
        self.pipeline = self.genai.ContinuousBatchingPipeline(folder, self.scheduler, DEVICE, given)
        self.facts = PipelineFacts(
            version=str(self.release.version),
            blocks=self.scheduler.num_kv_blocks or None,
            budget=self.scheduler.max_num_batched_tokens if self.scheduler.dynamic_split_fuse else None,
            seeing=seeing,
            longest=json.loads(Path(folder, CONFIG_FILE).read_text())["max_position_embeddings"],
            scheduler=self.release.scheduler_text(self.scheduler),
            properties=" ".join(f"{name}={value}" for name, value in sorted(properties.items())),
        )

    def add(self, number: int, prompt: list[int], max_tokens: int, scored: bool, echo: bool) -> None:
        """Add a request. `scored`: return logprobs. `echo`: return the prompt and its logprobs."""
        configuration = self.configuration(max_tokens, scored=scored, echo=echo)
        self.handles[number] = self.pipeline.add_request(number, self.tensor(prompt), configuration)

    def add_text(
        self, number: int, text: str, images: list[tuple[bytes, tuple[int, ...]]], max_tokens: int, scored: bool
    ) -> None:
        """Add a request to a model that takes images. `images`: the pixels of each, and the shape of its tensor."""
        configuration = self.configuration(max_tokens, scored=scored)
        configuration.apply_chat_template = False
        tensors = [
            self.openvino.Tensor(self.numpy.frombuffer(pixels, dtype=self.numpy.uint8).reshape(shape))
            for pixels, shape in images
        ]
        self.handles[number] = self.pipeline.add_request(number, text, tensors, configuration)

    def cancel(self, number: int) -> None:
        """Cancel a request. The next step frees its blocks."""
        self.release.cancel(self.handles.pop(number))

    def step(self) -> StepResult:
        """Execute one step, with or without requests, and return its results."""
        self.pipeline.step()
        outputs = [
            Output(number, list(one.generated_ids), list(one.generated_log_probs), one.finish_reason.name)
            for number, handle in self.handles.items()
            for one in read_outputs(handle)
        ]
        ended = {number: handle.get_status().name for number, handle in self.handles.items()}
        ended = {number: status for number, status in ended.items() if status in OVER}
        for number in ended:
            del self.handles[number]
        gauges = self.pipeline.get_metrics()
        return StepResult(
            outputs=outputs,
            ended=ended,
            usage=gauges.cache_usage,
            scheduled=gauges.scheduled_requests,
            waiting=self.pipeline.has_non_finished_requests(),
        )

    def generate(self, adapter: int | None, prompts: list[list[int]], most_tokens: list[int]) -> list[Output]:
        """Serve requests of one adapter (None: the base model) together, and return their outputs."""
        configurations = [self.configuration(count) for count in most_tokens]
        for configuration in configurations:
            configuration.adapters = self.genai.AdapterConfig(*(() if adapter is None else (self.adapters[adapter],)))
        answers = self.pipeline.generate([self.tensor(prompt) for prompt in prompts], configurations)
        return [
            Output(number, list(one.m_generation_ids[0]), [], self.release.finish_reason(one))
            if one.m_generation_ids
            else Output(number, [], [], NOT_REPORTED)
            for number, one in enumerate(answers)
        ]

    def configuration(self, max_tokens: int, *, scored: bool = False, echo: bool = False) -> Any:
        """Return the configuration of a greedy request."""
        configuration = self.genai.GenerationConfig()
        configuration.max_new_tokens, configuration.ignore_eos = max_tokens, True
        configuration.logprobs, configuration.echo = int(scored or echo), echo
        return configuration

    def tensor(self, prompt: list[int]) -> Any:
        """Return a prompt in the engine's form."""
        return self.openvino.Tensor(self.numpy.array([prompt], dtype=self.numpy.int64))


def read_outputs(handle: Any) -> list[Any]:
    """Return the outputs that are ready on a handle."""
    outputs = []
    while handle.can_read():
        outputs += handle.read().values()
    return outputs


def answer(connection: Connection, worker: Worker) -> None:
    """Execute one message and send the reply."""
    name, *arguments = msgspec.msgpack.decode(connection.recv_bytes())
    try:
        reply = [True, getattr(worker, name)(*arguments)]
    except RuntimeError as problem:
        reply = [False, str(problem)]
    connection.send_bytes(msgspec.msgpack.encode(reply))


def main() -> None:
    """Create the pipeline of the first message, and serve until the client closes the connection."""
    connection = Client(sys.argv[1], "AF_UNIX")
    try:
        worker = Worker(*msgspec.msgpack.decode(connection.recv_bytes()))
    except Exception as problem:  # noqa: BLE001 - the client reports any reason why the start failed
        connection.send_bytes(msgspec.msgpack.encode([False, f"{type(problem).__name__}: {problem}"]))
        return
    connection.send_bytes(msgspec.msgpack.encode([True, worker.facts]))
    while True:
        try:
            answer(connection, worker)
        except EOFError:
            return


if __name__ == "__main__":
    main()
