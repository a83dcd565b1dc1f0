"""OpenVINO GenAI in the process of a script: continuous batching, stepped by it; with adapters, `generate()`."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

from coldproof.adapters.common.tiny_model import write_safetensors
from coldproof.adapters.openvino.ir_model import write_decoder
from coldproof.adapters.openvino.vision_ir import SIDE, text_of_images, write_seeing_parts
from coldproof.adapters.protocol.images import Encoding, images_of, pixels, sent_image
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ABORTS,
    ADAPTED,
    ADAPTERS,
    AT_ONCE,
    FILES,
    IMAGES,
    INT8,
    MODEL,
    SCORES,
    SETTINGS,
    START_SEED,
)
from coldproof.adapters.spec.script.tensors import adapter_tensors, model_tensors

STEP_MS = 10  # one step in the engine's time


class Pipelines:
    """A pipeline with a prefix cache, and one without."""

    def __init__(self) -> None:
        numpy: Any = importlib.import_module("numpy")
        drawn = model_tensors(START_SEED).items()
        weights = {name: numpy.frombuffer(values, dtype="f4").reshape(shape) for name, (shape, values) in drawn}
        if IMAGES:
            write_seeing_parts(MODEL, weights, FILES / "ir")
        if not IMAGES:
            write_decoder(MODEL, weights, FILES / "ir", int8=INT8)
        if ADAPTED:
            for content in ADAPTERS:
                write_safetensors(FILES / f"{content}.safetensors", adapter_tensors(content))
        self.warm, self.without = Pipeline(caching=True), Pipeline(caching=False)

    def load(self, name: str, content: str, folder: str) -> None:
        """Do nothing: adapters were registered when the pipelines were created."""

    def unload(self, name: str) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Print that the engine has no reset."""
        print("reset: not possible; only a new pipeline has an empty cache")

    def together(self, sent: list[Sent]) -> list[list[Event]]:
        """Serve requests together, and return their answers."""
        return self.warm.together(sent)

    def serve(self, sent: list[Sent], take: Callable[[int, Event], bool], between: Callable[[], object] = int) -> None:
        """Serve requests until all have ended."""
        self.warm.serve(sent, take)

    def cold(self, sent: Sent) -> list[Event]:
        """Return the answer of the pipeline without a prefix cache."""
        if AT_ONCE:
            return self.without.together([sent])[0]
        parts: list[Event] = []

        def take(_place: int, part: Event) -> bool:
            parts.append(part)
            return True

        self.without.serve([{**sent, "abort": None, "offset_ms": 0}], take)
        return parts

    def ended(self) -> bool:
        """Return False: an engine that ends takes the script with it."""
        return False


class Pipeline:
    """OpenVINO GenAI's continuous batching with SETTINGS."""

    def __init__(self, *, caching: bool) -> None:
        self.genai: Any = importlib.import_module("openvino_genai")
        self.openvino: Any = importlib.import_module("openvino")
        self.numpy: Any = importlib.import_module("numpy")
        scheduler = self.genai.SchedulerConfig()
        scheduler.enable_prefix_caching = caching
        for name, value in SETTINGS.items():
            if name.islower():
                setattr(scheduler, name, value)
        properties = {name: value for name, value in SETTINGS.items() if name.isupper()}
        if ADAPTED:
            self.adapters = {content: self.genai.Adapter(FILES / f"{content}.safetensors") for content in ADAPTERS}
            properties["adapters"] = self.genai.AdapterConfig(list(self.adapters.values()))
        self.budget = scheduler.max_num_batched_tokens if scheduler.dynamic_split_fuse else None
        self.pipeline = self.genai.ContinuousBatchingPipeline(str(FILES / "ir"), scheduler, "CPU", properties, {}, {})
        self.numbers = 0

    def together(self, sent: list[Sent]) -> list[list[Event]]:
        """Serve requests by `generate()`, which alone takes adapters: those of an adapter together if they follow one
        another.
        """
        if not ADAPTED:
            answers = self.pipeline.generate([*map(self.tensor, sent)], [*map(self.configuration, sent)])
        else:
            answers = []
            for content, batch in itertools.groupby(sent, lambda one: one["content"]):
                several = list(batch)
                configurations = [self.configuration(one) for one in several]
                for configuration in configurations:
                    chosen = () if content is None else (self.adapters[content],)
                    configuration.adapters = self.genai.AdapterConfig(*chosen)
                answers += self.pipeline.generate([self.tensor(one) for one in several], configurations)
        return [[{"ids": ids} for ids in answer.m_generation_ids[:1]] for answer in answers]

    def serve(self, sent: list[Sent], take: Callable[[int, Event], bool]) -> None:
        """Serve requests until all have ended: by `generate()`, which alone takes adapters, or by steps."""
        if ADAPTED:
            for place, parts in enumerate(self.together(sent)):
                for part in parts:
                    take(place, part)
        else:
            self.step(sent, take)

    def step(self, sent: list[Sent], take: Callable[[int, Event], bool]) -> None:
        """Serve requests by steps. For a single request, their number gives the maximum number of cached tokens."""
        waiting, live, steps = dict(enumerate(sent)), dict[int, tuple[Any, int]](), 0
        answered: set[int] = set()
        while waiting or live:
            for place in [place for place, one in waiting.items() if one.get("offset_ms", 0) <= steps * STEP_MS]:
                live[place] = (self.add(waiting.pop(place)), steps)
            if ABORTS:
                self.disconnect(sent, live, answered, steps)
            if self.pipeline.has_non_finished_requests():
                self.pipeline.step()
            steps += 1
            for place, (handle, began) in list(live.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        part = event(sent[place], output, first=place not in answered)
                        if len(sent) == 1 and place not in answered and self.budget:
                            most = len(sent[place]["ids"]) - self.budget * (steps - began - 1) - 1
                            part["cached"] = max(0, most)
                        answered.add(place)
                        if not take(place, part):
                            handle.cancel()
                            live.pop(place, None)
                if handle.get_status().name in ("FINISHED", "IGNORED"):
                    live.pop(place, None)

    def disconnect(self, sent: list[Sent], live: dict[int, tuple[Any, int]], answered: set[int], steps: int) -> None:
        """Cancel the requests whose clients disconnect before there is an answer."""
        for place, (handle, began) in list(live.items()):
            after_tokens, after_ms = sent[place].get("abort") or (None, 0)
            if after_tokens == 0 and place not in answered and (steps - began) * STEP_MS >= after_ms:
                handle.cancel()
                del live[place]

    def add(self, sent: Sent) -> Any:
        """Add a request, and return its handle."""
        self.numbers += 1
        if IMAGES:
            return self.pipeline.add_request(
                self.numbers, text_of_images(sent["ids"]), self.images(sent), self.configuration(sent)
            )
        if not IMAGES:
            return self.pipeline.add_request(self.numbers, self.tensor(sent), self.configuration(sent))

    def images(self, sent: Sent) -> list[Any]:
        """Return the images of a prompt as tensors."""
        found = []
        for place, image in images_of(sent["ids"]):
            values = self.numpy.frombuffer(pixels(image, SIDE), dtype=self.numpy.uint8)
            square = (SIDE, SIDE, 3)
            one = sent_image(sent["hidden"][place]).encoding is Encoding.PNG
            found.append(self.openvino.Tensor(values.reshape(square if one else (1, *square))))
        return found

    def configuration(self, sent: Sent) -> Any:
        """Return the configuration of a request."""
        result = self.genai.GenerationConfig()
        result.max_new_tokens, result.ignore_eos = sent["tokens"], True
        if IMAGES:
            result.apply_chat_template = False
        if SCORES:
            extra = sent.get("extra", {})
            result.echo = extra.get("prompt_logprobs") is not None
            result.logprobs = int(result.echo or bool(extra.get("logprobs")))
        return result

    def tensor(self, sent: Sent) -> Any:
        """Return a prompt in the engine's form."""
        return self.openvino.Tensor(self.numpy.array([sent["ids"]], dtype=self.numpy.int64))


def event(sent: Sent, output: Any, *, first: bool) -> Event:
    """Return a step's output as a part of an answer. The first one has the scores of an echoed prompt."""
    ids = list(output.generated_ids)
    if not SCORES:
        return {"ids": ids}
    scores, extra, of_prompt = list(output.generated_log_probs), sent.get("extra", {}), {}
    if first and extra.get("prompt_logprobs") is not None:
        prompt, ids, echoed, scores = sent["ids"], ids[len(sent["ids"]) :], scores[:-1], scores[-1:]
        both = zip(prompt, echoed, strict=False)
        rows = [None if score > 0 else {str(token): {"logprob": score}} for token, score in both]
        missing = [None] * (len(prompt) - len(rows))
        of_prompt = {"prompt_token_ids": prompt, "prompt_logprobs": missing + rows}
    logprobs = {"token_logprobs": scores} if extra.get("logprobs") else {}
    return {"ids": ids, "logprobs": logprobs, **of_prompt}
