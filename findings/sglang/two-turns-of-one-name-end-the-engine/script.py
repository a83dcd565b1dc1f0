"""SGLang 0.5.23: replacing a turn below two of one name raises in the scheduler's loop. Exit status 1: the bug."""

import sys
from unittest.mock import MagicMock

from sglang.srt.managers.io_struct import SessionParams
from sglang.srt.session.session_controller import Session

session, raised = Session(1000, "chat"), None


def turn(name, **how):  # what the scheduler does with a request to /generate
    request = MagicMock(rid=name, input_ids=[1, 2], session_params=SessionParams(id="chat", **how))
    session.create_req(request, None, 128, req_factory=lambda **of: MagicMock(output_ids=[3], **of))


try:
    turn("first")
    turn("retry", rid="first")
    turn("retry", rid="first")
    turn("other", rid="first", replace=True)
except KeyError as problem:  # ends the server
    raised = repr(problem)
print(f"replacing the first turn raises: {raised}; expected: None")
sys.exit(raised is not None)
