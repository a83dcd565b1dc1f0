"""SGLang 0.5.23: replacing all turns of a session raises in the scheduler's loop. Exit status 1: the bug."""

import sys
from unittest.mock import MagicMock

from sglang.srt.managers.io_struct import SessionParams
from sglang.srt.session.session_controller import Session

session, raised = Session(1000, "chat"), None


def turn(rid, **how):  # what the scheduler does with a request to /generate
    request = MagicMock(rid=rid, input_ids=[1, 2], session_params=SessionParams(id="chat", **how))
    session.create_req(request, None, 128, req_factory=MagicMock)


turn("first")
try:
    turn("second", replace=True)
except RuntimeError as problem:  # ends the server
    raised = problem
print(f"replacing the only turn raises: {raised}; expected: None")
sys.exit(raised is not None)
