"""Read a stream of server-sent events, as it arrives. No line is longer than LINE_BYTES."""

from __future__ import annotations

from collections.abc import Iterator

import requests

from coldproof.adapters.protocol.engine import MalformedAnswer
from coldproof.adapters.server.answers import SHOWN
from coldproof.adapters.server.transport import MIB

READ_BYTES = 65536  # at once, at most
LINE_BYTES = 4 * MIB  # an event that repeats a prompt of 100,000 token ids has less than 1 MiB


def events(response: requests.Response, start: bytearray) -> Iterator[str]:
    """Yield the `data:` payloads of a stream of server-sent events. The first lines of the stream go to `start`."""
    for line in lines(response):
        if len(start) < SHOWN:
            start += line[:SHOWN] + b"\n"
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", "replace")


def lines(response: requests.Response) -> Iterator[bytes]:
    """Yield the lines of a body as they arrive. Raises MalformedAnswer for a line that is too long."""
    rest = bytearray()
    while chunk := response.raw.read1(READ_BYTES):
        *whole, last = chunk.split(b"\n")
        for line in whole:
            yield bytes(rest + line).rstrip(b"\r")
            rest.clear()
        rest += last
        if len(rest) > LINE_BYTES:
            what = f"{response.request.method} {response.request.path_url}"
            raise MalformedAnswer(
                f"{what} was answered with a line of more than {LINE_BYTES // MIB} MiB: not read further"
            )
    if rest:
        yield bytes(rest)
