"""A request of the in-process engine: its input, sampling parameters, adapter and collected outputs."""

from __future__ import annotations

import importlib
import io
import itertools
import time
from collections.abc import Mapping
from typing import Any

from coldproof.adapters.common.image_files import image_file
from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.common.stepping import SteppedRequest, seconds
from coldproof.adapters.protocol.embedding_rows import NO_ROW, has_rows, is_row
from coldproof.adapters.protocol.engine import EngineError, RequestRefused
from coldproof.adapters.protocol.images import (
    Encoding,
    arguments_of,
    has_images,
    images_of,
    is_image,
    numbers_and_colours,
    pixels,
    sent_image,
)
from coldproof.adapters.protocol.pooling import Rows, as_rows
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Stage, Token
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.server.completions import SEED, TOP_LOGPROBS, TRANSFER_FIELD, best_score, gap, transfer_limits
from coldproof.adapters.vllm.inproc.process import vllm_module


def engine_input(engine: Any, request: CompletionRequest, prompt: tuple[int, ...], shape: EngineShape) -> Any:
    """Return a prompt in the engine's form, after the server's checks. Raises ValueError if a check fails.

    `shape`: says whether prompts may have embedding rows or images.
    """
    limits = vllm_module("renderers").TokenizeParams(
        max_total_tokens=engine.model_config.max_model_len,
        max_output_tokens=request.max_tokens,
        max_total_tokens_param="max_model_len",
        max_output_tokens_param="max_tokens",
    )
    extras = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    source: dict[str, Any] = {"prompt_token_ids": [*prompt]}
    if shape.row_width is not None and has_rows(prompt):
        source = embeds_prompt(request, engine.model_config.dtype, shape.row_width)
    elif shape.image is not None and has_images(prompt):
        source = image_prompt(request, engine.model_config.hf_config.image_token_id, shape.image)
    (rendered,) = engine.renderer.render_cmpl([source], limits, prompt_extras=extras)
    return rendered


def embeds_prompt(request: CompletionRequest, dtype: Any, row_width: int) -> dict[str, Any]:
    """Return a prompt with rows as vLLM's `EmbedsPrompt`: all rows; and the token ids and the mask if it has both.

    The tensor has a row at each position, also where the mask selects the token.
    """
    torch: Any = importlib.import_module("torch")
    prompt, hidden = request.prompt, request.hidden or (NO_ROW,) * len(request.prompt)
    are_tokens = [not is_row(seen) for seen in prompt]
    rows = [under if token else seen for seen, under, token in zip(prompt, hidden, are_tokens, strict=True)]
    found: dict[str, Any] = {"prompt_embeds": torch.from_numpy(row_values(rows, row_width)).to(dtype)}
    if any(are_tokens):
        tokens = [seen if token else under for seen, under, token in zip(prompt, hidden, are_tokens, strict=True)]
        found |= {"prompt_token_ids": tokens, "prompt_is_token_ids": are_tokens}
    return found


def sampling(defaults: Mapping[str, Any], request: CompletionRequest) -> Any:
    """Return the sampling parameters that the server would use for `completions.body`, with the model's defaults."""
    module, response_options = vllm_module("sampling_params"), request.options
    pattern, transfer = response_options.pattern, transfer_limits(response_options)
    return module.SamplingParams(
        **{
            **defaults,
            "n": response_options.answers,
            "temperature": 0.0 if response_options.answers == 1 else 1.0,
            "seed": SEED,
            "max_tokens": request.max_tokens,
            "ignore_eos": not response_options.stop and pattern is None,
            "stop": list(response_options.stop),
            "structured_outputs": None if pattern is None else module.StructuredOutputsParams(regex=pattern),
            "logprobs": TOP_LOGPROBS if response_options.logprobs else None,
            "prompt_logprobs": 1 if response_options.prompt_logprobs else None,
            "output_kind": module.RequestOutputKind.DELTA,
            **({"extra_args": {TRANSFER_FIELD: transfer}} if transfer else {}),
        }
    )


def image_prompt(request: CompletionRequest, placeholder: int, shape: ImageShape) -> dict[str, Any]:
    """Return a prompt with images, as the server makes it of a request: one placeholder for each, which the processor
    replaces by several.
    """
    found = list(images_of(request.prompt))
    starts = {place for place, _ in found}
    tokens = [placeholder if i in starts else n for i, n in enumerate(request.prompt) if i in starts or not is_image(n)]
    sent = [sent_image(request.hidden[place] if request.hidden else 0) for place, _ in found]
    images = [
        media(pixels(image, shape.side), shape.side, one.encoding) for (_, image), one in zip(found, sent, strict=True)
    ]
    uuids = [f"image-{one.uuid}" if one.uuid else None for one in sent]
    prompt: dict[str, Any] = {"prompt_token_ids": tokens, "multi_modal_data": {"image": images}}
    arguments = arguments_of(request.prompt, request.hidden or ()).fields()
    prompt |= {"mm_processor_kwargs": arguments} if arguments else {}
    return prompt | ({"multi_modal_uuids": {"image": uuids}} if any(uuids) else {})


def media(pixels_: bytes, side: int, encoding: Encoding) -> Any:
    """Return an image as vLLM's server has it once it is loaded: with the bytes of its file, if it came as a file."""
    pil: Any = importlib.import_module("PIL.Image")
    image = pil.frombytes("RGB", (side, side), pixels_)
    if encoding is Encoding.PIXELS:
        return image
    if encoding is Encoding.TRANSPARENT:
        loader = vllm_module("multimodal.media").ImageMediaIO(rgba_background_color=tuple(pixels_[:3]))
        return loader.load_bytes(image_file(pixels_, side, encoding))
    if encoding is Encoding.PALETTE:
        numbers, colours = numbers_and_colours(pixels_)
        image = pil.frombytes("P", (side, side), numbers)
        image.putpalette(colours)
        return image
    file = image_file(pixels_, side, encoding)
    read = pil.open(io.BytesIO(file)).convert("RGB")
    return vllm_module("multimodal.media").MediaWithBytes(read, file)


class AdapterNames:
    """The loaded adapters: served name -> LoRARequest, as in vLLM's server.

    A block's hash depends on the LoRARequest, so its fields must equal the server's
    (entrypoints/openai/models/serving.py).
    """

    def __init__(self, engine: Any, base_model: str) -> None:
        self.engine, self.base_model = engine, base_model
        self.loaded: dict[str, Any] = {}
        self._ids = itertools.count(1)

    def lora_request(self, model: str) -> Any:
        """Return the LoRARequest of a served name; None for the base model. Raises RequestRefused for unknown names."""
        if model == self.base_model:
            return None
        if model not in self.loaded:
            raise RequestRefused(404, f"The model `{model}` does not exist.")
        return self.loaded[model]

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter. Raises RequestRefused, with the server's status, if the server would refuse."""
        if not name or not path:
            raise RequestRefused(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.base_model:
            raise RequestRefused(400, f"The lora adapter '{name}' conflicts with a served base model.")
        if not in_place and name in self.loaded:
            raise RequestRefused(400, f"The lora adapter '{name}' has already been loaded.")
        number = self.loaded[name].lora_int_id if name in self.loaded else next(self._ids)
        request = vllm_module("lora.request").LoRARequest(
            lora_name=name, lora_int_id=number, lora_path=path, load_inplace=in_place
        )
        try:
            self.engine.add_lora(request)
        except Exception as problem:
            missing = type(problem).__name__ == "LoRAAdapterNotFoundError"
            raise RequestRefused(404 if missing else 500, str(problem)) from problem
        self.loaded[name] = request

    def unload(self, name: str) -> None:
        """Remove a name. As in the server, the engine is not informed. Raises RequestRefused for an unknown name."""
        if name not in self.loaded:
            raise RequestRefused(404, f"The lora adapter '{name}' cannot be found.")
        del self.loaded[name]


def parameters(defaults: Mapping[str, Any], request: CompletionRequest) -> Any:
    """Return the parameters of a request: for sampling, or for a pooled answer."""
    task = request.options.pooled
    return sampling(defaults, request) if task is None else vllm_module("pooling_params").PoolingParams(task=task.value)


class InprocRequest(SteppedRequest):
    """A request in the engine.

    `scheduled` is the scheduler's table of requests. It has this request under the name `inner`; for several answers,
    it has one entry per answer.
    """

    def __init__(
        self, request: CompletionRequest, *, name: str, inner: str, scheduled: Mapping[str, Any], step: int
    ) -> None:
        super().__init__(request, step)
        self.name = name
        answers = [inner] if request.options.answers == 1 else [f"{i}_{inner}" for i in range(request.options.answers)]
        self.inner_names = list(dict.fromkeys([*answers, inner]))  # the parent of several answers comes last
        self.cores = [scheduled[each] for each in answers]
        self.answers: list[list[Token]] = [self.tokens, *([] for _ in answers[1:])]
        self.text = ""
        self.cached_tokens: int | None = None
        self.prompt: tuple[int, ...] | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.prompt_best: tuple[float | None, ...] | None = None
        self.pooled: Rows | None = None
        self.preempted_at: list[float] = []
        # vLLM reports placeholders of content, and of a session only its inputs.
        self.reports_prompt = not (request.session or has_rows(request.prompt) or has_images(request.prompt))
        self.preempted_before: int = sum(core.num_preemptions for core in self.cores)  # in earlier turns of a session

    @property
    def count(self) -> int:
        """Return the number of tokens so far; 1 for a pooled answer, whose arrival is progress as well."""
        return super().count if self.pooled is None else 1

    @property
    def preemptions(self) -> int:
        """Return the scheduler's number of preemptions, summed over all answers."""
        total: int = sum(core.num_preemptions for core in self.cores)
        return total - self.preempted_before

    def wait_for_grammar(self) -> None:
        """Wait until vLLM's thread has compiled the pattern: otherwise the step at which it is ready would vary."""
        for core in self.cores:
            grammar = core.structured_output_request
            while grammar is not None and not grammar.is_grammar_ready:
                time.sleep(0.001)

    def note_preemptions(self, step: int) -> None:
        """Record the preemptions of a step. Call it after the step."""
        new = self.preemptions - len(self.preempted_at)
        self.preempted_at += [seconds(step - self.step)] * new

    def take(self, output: Any, step: int) -> None:
        """Add the output of a step."""
        if self.prompt is None:
            self.prompt = tuple(output.prompt_token_ids)
            self.cached_tokens = None if self.request.held else output.num_cached_tokens
        if self.request.options.pooled is not None:
            self.take_pooled(output, step)
            return
        if output.prompt_logprobs:
            rows = zip(self.prompt, output.prompt_logprobs, strict=False)  # a checker reports missing rows
            self.prompt_logprobs = tuple(row[token].logprob if row and token in row else None for token, row in rows)
            self.prompt_best = tuple(best_score(row) if row else None for row in output.prompt_logprobs)
        at = seconds(step - self.step)
        for part in output.outputs:
            scores = part.logprobs or [None] * len(part.token_ids)
            for token, row in zip(part.token_ids, scores, strict=True):
                self.answers[part.index].append(scored_token(token, at, row))
            if part.index == 0:
                self.text += part.text
                self.finish_reason = part.finish_reason
        if output.finished or (self.request.session and self.finish_reason is not None):
            self.ended = step

    def take_pooled(self, output: Any, step: int) -> None:
        """Add an output with vectors: `[values]`, or `[positions, values]` for one of each token."""
        values = output.outputs.data.float()
        self.pooled = as_rows(values.reshape(-1, values.shape[-1]).tolist())
        if output.finished:
            self.ended = step

    def stage(self) -> Stage:
        """Return how far the scheduler has come with it."""
        status = vllm_module("v1.request").RequestStatus
        if all(core.status != status.RUNNING for core in self.cores):
            preempted = any(core.status == status.PREEMPTED for core in self.cores)
            return Stage.PREEMPTED if preempted else Stage.QUEUED
        return Stage.DECODE if any(core.num_output_tokens for core in self.cores) else Stage.PREFILL

    def result(self) -> Completion | EngineError:
        """Return the completion; the engine's error if it ended the request with one."""
        if self.finish_reason == "error":
            return RequestRefused(500, "the engine ended the request with an error; the engine's log has the reason")
        return Completion(
            tokens=tuple(self.answers[0]),
            finish_reason=self.finish_reason,
            cached_tokens=self.cached_tokens,
            text=self.text,
            others=tuple(tuple(tokens) for tokens in self.answers[1:]),
            prompt_logprobs=self.prompt_logprobs,
            prompt=self.prompt if self.reports_prompt else None,
            aborted=self.aborted,
            preemptions=self.preemptions,
            preempted_at=tuple(self.preempted_at),
            prompt_best=self.prompt_best,
            pooled=self.pooled,
        )


def scored_token(token: int, at: float, row: Any) -> Token:
    """Return a token, with logprob and gap if the engine returned a row of token -> rank and logprob."""
    if row is None:
        return Token(id=token, at=at)
    best = [entry.logprob for entry in row.values() if entry.rank <= TOP_LOGPROBS]
    return Token(id=token, at=at, logprob=row[token].logprob, gap=gap(best))
