"""Rewind a sliding window only as far as the window before that place is still there.

Otherwise the prompt is computed anew, as where a state cannot be cut. It is the rule of llama.cpp's own server.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.3.36"


def install() -> None:
    """Plant the repair."""
    edit(
        part("llama_cpp", "Llama"),
        "generate",
        (
            "        if reuse_prefix > 0:\n",
            """        oldest = llama_cpp.llama_memory_seq_pos_min(llama_cpp.llama_get_memory(self._ctx.ctx), 0)
        window = llama_cpp.llama_model_n_swa(self._model.model)
        if reuse_prefix > 0 and (window == 0 or oldest <= max(0, reuse_prefix - window)):
""",
        ),
    )
