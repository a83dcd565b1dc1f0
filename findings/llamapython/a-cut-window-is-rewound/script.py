"""llama-cpp-python 0.3.36: a prompt is continued where its sliding window is gone. Exit status 1: the bug."""

from types import SimpleNamespace

import llama_cpp
import numpy as np

llama_cpp.llama_memory_seq_pos_min = lambda *_memory: 500  # of 700 tokens
llama_cpp.llama_model_n_swa = llama_cpp.llama_get_memory = lambda _any: 200


class Sequence(llama_cpp.Llama):  # without a model: it has computed 700 tokens
    n_tokens, computed, verbose, draft_model, _is_recurrent, _is_hybrid = 700, 0, False, None, False, False
    input_ids, _model = np.arange(700), SimpleNamespace(model=None)
    _ctx = SimpleNamespace(ctx=None, kv_cache_seq_rm=lambda *_place: True)
    __init__ = __del__ = _init_sampler = sample = lambda *_arguments, **_options: None

    def eval(self, tokens):
        self.computed, self.n_tokens = self.computed + len(tokens), self.n_tokens + len(tokens)


llama = Sequence()
next(llama.generate([*range(10), *range(1000, 1030)]))  # ten of these tokens, thirty others
print(f"where the window is gone, Llama.generate computes {llama.computed} of 40 tokens; expected: 40")
raise SystemExit(llama.computed != 40)
