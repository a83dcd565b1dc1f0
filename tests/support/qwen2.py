"""A Qwen2 decoder in plain arithmetic, to compare a converted model with. It needs numpy."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

from coldproof.adapters.common.gguf import read_tensors


def greedy(model: Path, tokens: tuple[int, ...], count: int, adapter: Path | None) -> list[int]:
    """Return the model's greedy answer, computed by plain arithmetic from its files alone."""
    return Arithmetic(model, adapter).answer(list(tokens), count)


class Arithmetic:
    """A Qwen2 decoder in numpy and double precision; an adapter is added to the weights that it changes."""

    def __init__(self, model: Path, adapter: Path | None) -> None:
        self.np = importlib.import_module("numpy")
        self.config = json.loads((model / "config.json").read_text())
        self.weights = self.arrays(model / "model.safetensors")
        self.heads, self.kept = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head = self.config["hidden_size"] // self.heads
        changes = self.arrays(adapter / "adapter_model.safetensors") if adapter else {}
        for name in [name for name in changes if name.endswith("lora_A.weight")]:
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            self.weights[target] = self.weights[target] + changes[name.replace("lora_A", "lora_B")] @ changes[name]

    def arrays(self, file: Path) -> dict[str, Any]:
        """Return a file's tensors in double precision."""
        read = read_tensors(file).items()
        return {name: self.np.frombuffer(raw, "<f4").reshape(shape).astype("f8") for name, (shape, raw) in read}

    def answer(self, tokens: list[int], count: int) -> list[int]:
        """Return greedily chosen tokens. Each step computes the whole sequence again."""
        for _ in range(count):
            tokens = [*tokens, int(self.logits(tokens).argmax())]
        return tokens[-count:]

    def logits(self, tokens: list[int]) -> Any:
        """Return the logits of the token that follows these."""
        hidden = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            hidden = hidden + self.attention(name, self.norm(f"{name}.input_layernorm", hidden))
            inner = self.norm(f"{name}.post_attention_layernorm", hidden)
            gate = self.linear(f"{name}.mlp.gate_proj", inner)
            product = gate / (1 + self.np.exp(-gate)) * self.linear(f"{name}.mlp.up_proj", inner)
            hidden = hidden + self.linear(f"{name}.mlp.down_proj", product)
        return self.linear("lm_head", self.norm("model.norm", hidden))[-1]

    def attention(self, name: str, hidden: Any) -> Any:
        """Return causal softmax attention over all earlier tokens."""
        np, length = self.np, len(hidden)
        query, key, value = (
            self.linear(f"{name}.self_attn.{part}_proj", hidden).reshape(length, -1, self.head).transpose(1, 0, 2)
            for part in "qkv"
        )
        query, key = self.turned(query), self.turned(key)
        key, value = (np.repeat(kept, self.heads // self.kept, 0) for kept in (key, value))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(self.head) + np.triu(np.full((length, length), -1e9), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (shares / shares.sum(-1, keepdims=True)) @ value
        return self.linear(f"{name}.self_attn.o_proj", seen.transpose(1, 0, 2).reshape(length, -1))

    def turned(self, heads: Any) -> Any:
        """Return queries or keys with the rotary embedding of each token's position."""
        np, half = self.np, self.head // 2
        speeds = 1 / self.config["rope_theta"] ** (np.arange(0, self.head, 2) / self.head)
        angles = np.arange(heads.shape[1])[:, None] * np.concatenate([speeds, speeds])
        return heads * np.cos(angles) + np.concatenate([-heads[..., half:], heads[..., :half]], -1) * np.sin(angles)

    def norm(self, name: str, hidden: Any) -> Any:
        """Return the root-mean-square norm of the hidden states."""
        mean = (hidden**2).mean(-1, keepdims=True)
        return hidden / self.np.sqrt(mean + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def linear(self, name: str, hidden: Any) -> Any:
        """Return a matrix product, plus the bias if the layer has one."""
        return hidden @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)
