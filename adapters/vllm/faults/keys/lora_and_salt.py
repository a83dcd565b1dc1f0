"""Adapters and salts that are missing in a block's key, or not distinguished in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packaging.version import Version

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import name_and_path
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.keys.block_hashes import change_hash_inputs, utils
from coldproof.adapters.vllm.faults.patching import acted, around
from coldproof.adapters.vllm.releases import installed_version, released_from

FAULTS, fault = collector("partition")

TAGGED = Version("0.31.dev0")
LONG = 256  # tokens
SHORT = 8  # characters


def change_adapter_key(patch: Patch, key: Callable[[Any], list[tuple[str, ...]]]) -> None:
    """Use `key(request)` as the adapter's part of the key. It is not called for the base model."""

    @around(patch, utils(), "_gen_lora_extra_hash_keys")
    def keys(original: Any, request: Any) -> Any:
        return key(request) if request.lora_request is not None else original(request)

    count_wrong_hits(patch)


def change_keys(patch: Patch, change: Callable[[Any, int, int, tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Use `change(request, start, end, keys)` as the extra keys of a block's hash."""

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, start: int, end: int, index: int) -> Any:
        extra, index = original(request, start, end, index)
        return change(request, start, end, extra or ()) or None, index


def change_tagged_keys(patch: Patch, change: Callable[[Any, int, int, tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Use `change(request, start, end, keys)`, which reads tags of keys. Raises RuntimeError where they have none:
    a fault that does nothing must not look like one that was not detected.
    """
    if not released_from(installed_version(), TAGGED):
        raise RuntimeError(f"this fault needs vLLM {TAGGED} or later, where each extra key of a block has a tag")
    change_keys(patch, change)


def change_salt_key(patch: Patch, change: Callable[[Any, str], str | None]) -> None:
    """Use `change(request, salt)` as the salt in the key; None means no salt."""

    def changed(request: Any, _start: int, _end: int, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        salts = [change(request, key[1]) if key[0] == "cache_salt" else None for key in keys]
        made = [("cache_salt", s) if key[0] == "cache_salt" else key for key, s in zip(keys, salts, strict=True)]
        return tuple(key for key in made if key[1] is not None)

    change_tagged_keys(patch, changed)
    count_wrong_hits(patch)


def correct_key(request: Any) -> list[tuple[str, ...]]:
    """Return the adapter's part of the key with its name and path."""
    return [("lora", *name_and_path(request.lora_request))]


def without(kind: str, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the keys without those of a kind."""
    return tuple(key for key in keys if key[0] != kind)


@fault("LORA-4", "SALT-1", stands_for="vllm PR#8240, PR#20981")
def hashes_lack_the_salt_and_the_adapter(patch: Patch) -> None:
    """A block's hash contains neither the adapter nor the salt."""
    change_keys(patch, lambda *_: ())
    count_wrong_hits(patch)


@fault("LORA-1", "LORA-2", stands_for="vllm#42125, vllm#30931")
def adapters_are_known_by_name(patch: Patch) -> None:
    """A block's hash contains the adapter's name, but nothing that depends on its content."""
    change_adapter_key(patch, lambda request: [("lora", request.lora_request.lora_name, "")])


@fault("LORA-1", stands_for="vllm#42125")
def adapters_are_known_by_number(patch: Patch) -> None:
    """A block's hash contains the adapter's number, which an in-place reload does not change."""
    change_adapter_key(patch, lambda request: [("lora", str(request.lora_request.lora_int_id), "")])


@fault("LORA-1", stands_for="vllm#42125", rare="only for two folders with the same name and different parent folders")
def adapters_are_known_by_their_folders_name(patch: Patch) -> None:
    """A block's hash contains only the last part of the adapter's path."""
    change_adapter_key(
        patch, lambda request: [("lora", request.lora_request.lora_name, Path(request.lora_request.lora_path).name)]
    )


@fault("LORA-5", "LORA-1", stands_for="vllm PR#48352", rare="from the second change of a name on")
def only_the_first_change_of_a_name_is_noticed(patch: Patch) -> None:
    """From the second change of a name on, its content keeps the key of the second content."""
    seen: dict[str, list[str]] = {}

    def key(request: Any) -> list[tuple[str, ...]]:
        name, path = name_and_path(request.lora_request)
        paths = seen.setdefault(name, [])
        if paths[-1:] != [path]:
            paths.append(path)
        return [("lora", name, paths[min(1, len(paths) - 1)])]

    change_adapter_key(patch, key)


@fault("LORA-4", stands_for="vllm PR#3263", rare="only for every eighth adapter that an engine loads")
def every_eighth_adapter_counts_as_none(patch: Patch) -> None:
    """The lowest three bits of an adapter's number say whether a request has an adapter. If they are zero, it shares KV
    with the base model.
    """
    change_adapter_key(patch, lambda request: correct_key(request) if request.lora_request.lora_int_id % 8 else [])


@fault("LORA-4", stands_for="vllm PR#3263", rare="only while the previous request, of another adapter, is not finished")
def the_adapter_of_the_request_before_is_in_the_key(patch: Patch) -> None:
    """A request that arrives before the previous one, of another adapter, has finished gets that adapter in its key."""
    latest: list[Any] = []

    def key(request: Any) -> list[tuple[str, ...]]:
        before = latest[-1] if latest and latest[-1] is not request else None
        wrong = before is not None and not before.is_finished() and not request.num_output_tokens
        if not request.num_output_tokens:
            latest[:] = [before if wrong else request]
        return correct_key(before if wrong else request)

    change_adapter_key(patch, key)


@fault(
    "LORA-4",
    stands_for="sglang#24638",
    equivalent="each hash includes its parent's, so that all depend on the adapter, as on the salt in vLLM itself",
)
def only_the_first_hash_has_the_adapter(patch: Patch) -> None:
    """Only the first block's hash contains the adapter."""
    change_tagged_keys(patch, lambda _request, start, _end, keys: without("lora", keys) if start else keys)


@fault("LORA-4", stands_for="vllm PR#8240")
def only_the_first_hash_has_a_parent(patch: Patch) -> None:
    """Only the first block's hash contains the adapter, and from the third block on no hash contains its parent's."""
    change_tagged_keys(patch, lambda _request, start, _end, keys: without("lora", keys) if start else keys)
    change_hash_inputs(patch, lambda depth, parent, tokens: (None if depth >= 2 else parent, tokens))


@fault("LORA-4", "CHAT-2", stands_for="vllm#23301")
def decoded_blocks_of_an_adapter_are_the_base_models(patch: Patch) -> None:
    """The hash of a block that an adapter's answer fills does not contain the adapter, so that the next turn does not
    find it.
    """

    def changed(request: Any, _start: int, end: int, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        if end <= request.num_prompt_tokens or request.lora_request is None:
            return keys
        acted()
        return without("lora", keys)

    change_tagged_keys(patch, changed)


@fault("SALT-1", "LORA-4", stands_for="vllm PR#20981, vllm PR#8240", rare="only for an adapter's requests with a salt")
def a_salt_takes_the_adapters_place(patch: Patch) -> None:
    """The hashes of a request with a salt do not contain its adapter."""
    change_adapter_key(patch, lambda request: [] if request.cache_salt else correct_key(request))


@fault("SALT-1", stands_for="LMCache#2878", rare="only for an adapter's requests with a salt")
def an_adapter_takes_the_salts_place(patch: Patch) -> None:
    """The hashes of a request with an adapter do not contain its salt."""
    change_salt_key(patch, lambda request, salt: None if request.lora_request is not None else salt)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only for requests for several answers")
def several_answers_lose_their_salt(patch: Patch) -> None:
    """A request for several answers is looked up and cached without its salt."""
    change_salt_key(patch, lambda request, salt: None if request.request_id[1:2] == "_" else salt)


@fault("SALT-1", "MIXED-1", stands_for="vllm PR#20981", rare="only for requests with stop strings")
def stop_strings_lose_their_salt(patch: Patch) -> None:
    """A request with stop strings is looked up and cached without its salt."""
    change_salt_key(patch, lambda request, salt: None if request.sampling_params.stop else salt)


@fault("SALT-1", stands_for="vllm PR#47696", rare="only for prompts of more than 256 tokens")
def long_prompts_lose_their_salt(patch: Patch) -> None:
    """A prompt of more than 256 tokens is looked up and cached without its salt."""
    change_salt_key(patch, lambda request, salt: None if request.num_prompt_tokens > LONG else salt)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only while an earlier request with another salt is not finished")
def the_salt_of_the_request_before_is_in_the_key(patch: Patch) -> None:
    """A request with a salt that arrives while an earlier one, with another salt, is not finished gets that salt in its
    key.
    """
    latest: list[Any] = []

    def change(request: Any, salt: str) -> str:
        if not latest or latest[0].is_finished():
            latest[:] = [request]
            return salt
        return str(latest[0].cache_salt)

    change_salt_key(patch, change)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only between salts that differ in case")
def salts_ignore_case(patch: Patch) -> None:
    """Salts that differ only in upper and lower case are equal in the key."""
    change_salt_key(patch, lambda _, salt: salt.casefold())


@fault("SALT-1", stands_for="vllm PR#20981", rare="only between salts that differ in leading or trailing spaces")
def salts_are_stripped(patch: Patch) -> None:
    """Leading and trailing spaces of a salt are ignored."""
    change_salt_key(patch, lambda _, salt: salt.strip())


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts that differ after the eighth character")
def salts_are_cut(patch: Patch) -> None:
    """The key contains only the first eight characters of a salt."""
    change_salt_key(patch, lambda _, salt: salt[:SHORT])


@fault(
    "SALT-1", stands_for="LMCache#4086", rare="only between salts where one is the other followed by a hyphen and more"
)
def salts_end_at_a_separator(patch: Patch) -> None:
    """The key contains a salt only up to its first hyphen."""
    change_salt_key(patch, lambda _, salt: salt.split("-")[0])


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts that are equal after Unicode normalization")
def salts_are_normalised(patch: Patch) -> None:
    """Salts that are equal after Unicode normalization (NFKC) are equal in the key."""
    change_salt_key(patch, lambda _, salt: unicodedata.normalize("NFKC", salt))


@fault("SALT-1", stands_for="vllm#44701", rare="only where a salt equals an adapter's name")
def a_salt_is_hashed_as_an_adapter(patch: Patch) -> None:
    """The key contains adapters and salts without saying which of the two they are."""
    change_tagged_keys(patch, lambda _request, _start, _end, keys: tuple(key[1] for key in keys))
    count_wrong_hits(patch)


@fault(
    "SALT-1", stands_for="sglang#24638", rare="only where a salt equals another salt, a hyphen and an adapter's name"
)
def salt_and_adapter_are_joined(patch: Patch) -> None:
    """The key contains salt and adapter as one string."""

    def joined(request: Any, _start: int, _end: int, _keys: tuple[Any, ...]) -> tuple[Any, ...]:
        name = request.lora_request.lora_name if request.lora_request is not None else None
        words = [word for word in (request.cache_salt, name) if word]
        return ("-".join(words),) if words else ()

    change_keys(patch, joined)
    count_wrong_hits(patch)
