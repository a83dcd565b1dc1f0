"""Probe a server by URL: the form of its requests and answers, and how it gives cold answers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import msgspec

from coldproof.adapters.endpoint.client import EndpointClient
from coldproof.adapters.endpoint.cold import ColdWay
from coldproof.adapters.endpoint.forms import OWN_FIELDS, Form
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, MalformedAnswer, RequestRefused, printable
from coldproof.adapters.protocol.requests import CompletionRequest, ResponseOptions
from coldproof.adapters.server.probes import PROBE_TOKENS, ProbeResult, probe
from coldproof.adapters.server.served_model import ListedModel, served_model

FORM_TOKENS = 24  # of a prompt
RESENT, PAUSE_SECONDS = 3, 0.1  # a prompt that is never hit
MOST_DISPLACING = 64  # short prompts before each cold request
NO_COUNTS = "the server does not report cached tokens (usage.prompt_tokens_details.cached_tokens)"
NO_WAY = f"a prompt that was sent before is hit, also with cache_prompt false and after {MOST_DISPLACING} other prompts"
GIVE = "start a second one without its prefix cache and give it with --cold-url"


def probe_endpoint(client: EndpointClient, adapter_path: str | None) -> ProbeResult:
    """Probe a server. Raises EngineError if it lists no model or sends no answer that Coldproof can read."""
    served = served_model(client)
    client.base_model = served.id
    tried = find_form(client, served)
    if client.form not in OWN_FIELDS:
        client.watch_health()
    found = probe(client, spawned=False, adapter_path=adapter_path)
    capabilities = dict(found.capabilities)
    for capability in (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS):
        known = capabilities[capability]
        words = tried if known.present is True else [*tried, known.evidence]
        capabilities[capability] = Support(known.present, "; ".join(words))
    if capabilities[Capability.CACHE_SALT].present is not True:
        capabilities[Capability.COLD_ANSWERS] = find_cold_way(client, served, capabilities)
    # Whether an unknown engine has the KV of an answer's last token is not known, so that a hit on it is allowed.
    shape = found.shape if found.cache_config else msgspec.structs.replace(found.shape, computes_last=True)
    return msgspec.structs.replace(found, capabilities=capabilities, shape=shape)


def new_request(served: ListedModel, tokens: int) -> CompletionRequest:
    """Return a request with a prompt that no server has seen."""
    prompt = tuple(random.SystemRandom().choices(range(33, 126), k=tokens))
    return CompletionRequest(model=served.id, prompt=prompt, max_tokens=2)


def find_form(client: EndpointClient, served: ListedModel) -> list[str]:
    """Let the client use the first form in which ids are returned for two requested tokens.

    Return what was tried. Without such a form, the client stays with vLLM's fields.
    """
    tried: list[str] = []
    for form in Form:
        client.use(form)
        try:
            count = len(client.complete(new_request(served, FORM_TOKENS)).tokens)
        except (RequestRefused, MalformedAnswer, EngineDied) as problem:
            if isinstance(problem, EngineDied) and not tried:
                raise  # before any form was refused
            tried.append(f"{form.value}: {printable(str(problem), 200)}")
            continue
        if count:  # more than two are a fault, which a requirement reports
            return [form.value]
        tried.append(f"{form.value}: {count} token ids for max_tokens 2")
    client.use(Form.FIELDS)
    return tried


def find_cold_way(client: EndpointClient, served: ListedModel, found: dict[Capability, Support]) -> Support:
    """Let the client use the first way in which a prompt that hits when it is sent again has no hit."""
    if found[Capability.CACHED_TOKENS].present is not True:
        return Support(False, f"{NO_COUNTS}: {GIVE}")
    reset, scored = (found[one].present is True for one in (Capability.CACHE_RESET, Capability.LOGPROBS))
    for way, displacing in ways(reset=reset):
        client.cold_way, client.displacing = way, displacing
        try:
            if is_cold(client, way, served, scored=scored):
                more = f" ({displacing} prompts)" if displacing else ""
                return Support(True, way.value + more)
        except (RequestRefused, MalformedAnswer):
            continue
    client.cold_way = None
    return Support(False, f"{NO_WAY}: {GIVE}")


def ways(*, reset: bool) -> Iterator[tuple[ColdWay, int]]:
    """Yield the ways to try, each with the number of other prompts."""
    yield ColdWay.NO_HITS, 0
    yield ColdWay.FIELD, 0
    if reset:
        yield ColdWay.RESET, 0
    count = 1
    while count <= MOST_DISPLACING:
        yield ColdWay.DISPLACED, count
        count *= 2


def is_cold(client: EndpointClient, way: ColdWay, served: ListedModel, *, scored: bool) -> bool:
    """Return whether prompts that were sent before are computed anew in this way. Raises EngineError.

    A short and a long one, as the oracle sends them: with scores, too, if the server has them. An answer without a
    count is not known to be cold.
    """
    forms = [ResponseOptions(), *([ResponseOptions(logprobs=True)] if scored else [])]
    for tokens in (FORM_TOKENS, min(PROBE_TOKENS, served.max_tokens // 2)):
        for options in forms:
            request = msgspec.structs.replace(new_request(served, tokens), options=options)
            client.complete(request)
            for _ in range(RESENT if way is ColdWay.NO_HITS else 1):
                time.sleep(PAUSE_SECONDS)  # a prompt may be kept only a moment after its answer
                client.clear(request)
                if client.complete(msgspec.structs.replace(request, cold=True)).cached_tokens != 0:
                    return False
    return True
