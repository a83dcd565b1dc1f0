"""llama-cpp-python 0.3.36: a prompt is continued where its sliding window is gone. Exit status 1: the bug."""

from types import SimpleNamespace

import numpy as np
import llama_cpp
from llama_cpp import Llama

computed = []
context = SimpleNamespace(ctx=None, kv_cache_seq_rm=lambda *_place: True)  # as llama.cpp answers for any place
llama_cpp.llama_get_memory = lambda _context: None
llama_cpp.llama_memory_seq_pos_min = lambda *_memory: 500  # of a sequence of 700 tokens, the window has the last 200
llama_cpp.llama_model_n_swa = lambda _model: 200


class Sequence(Llama):  # without a model: it has computed 700 tokens
    n_tokens, _requires_eval, verbose, draft_model, _is_recurrent, _is_hybrid = 700, False, False, None, False, False
    input_ids, _ctx, _model = np.arange(700), context, SimpleNamespace(model=None)
    __init__ = __del__ = lambda self, *_options: None
    _init_sampler = lambda self, **_options: None
    sample = lambda self, **_options: 0

    def eval(self, tokens):
        computed.extend(tokens)
        self.n_tokens += len(tokens)


next(Sequence().generate([*range(10), *range(1000, 1030)]))  # ten tokens of that sequence, and thirty others
print(
    f"with a window of which the beginning is gone, Llama.generate computes {len(computed)} of 40 tokens; expected: 40"
)
raise SystemExit(len(computed) != 40)
