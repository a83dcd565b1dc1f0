# Copyright 2026 The HuggingFace Team. All rights reserved.
"""Prefixes are not shared between adapters (tests/generation/test_continuous_batching.py)."""

import tempfile
import unittest
from unittest.mock import patch

import torch
from peft import LoraConfig, get_peft_model
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache


class PrefixSharingOfAdaptersTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
        )
        self.model = LlamaForCausalLM(config).eval()
        self.hits = []
        search = PagedAttentionCache.search_prefix_match

        def recorded(cache, request_id, prompt_ids):
            self.hits.append(search(cache, request_id, prompt_ids))
            return self.hits[-1]

        recorder = patch.object(PagedAttentionCache, "search_prefix_match", recorded)
        recorder.start()
        self.addCleanup(recorder.stop)

    def adapter_folder(self, seed):
        """Save an adapter with random weights, and return its folder."""
        torch.manual_seed(seed)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
        get_peft_model(LlamaForCausalLM(self.model.config), lora).save_pretrained(folder)
        return folder

    def generate_with(self, folders):
        """Send one prompt after each folder was loaded as the adapter, and return the hits."""
        sharing = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=256, use_cuda_graph=False)
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
        with self.model.continuous_batching_context_manager(greedy, continuous_batching_config=sharing) as manager:
            for folder in folders:
                with manager.pause():
                    if "adapter" in getattr(self.model, "peft_config", {}):
                        self.model.delete_adapter("adapter")
                    self.model.load_adapter(folder, adapter_name="adapter")
                    self.model.set_adapter("adapter")
                manager.add_request(list(range(1, 20)), max_new_tokens=4)
                self.assertIsNone(manager.get_result(timeout=60).error)
        return self.hits

    def test_prefix_of_a_replaced_adapter_is_not_hit(self):
        self.assertEqual(self.generate_with([self.adapter_folder(1), self.adapter_folder(2)]), [0, 0])

    def test_prefix_of_the_same_adapter_is_hit(self):
        folder = self.adapter_folder(1)
        self.assertEqual(self.generate_with([folder, folder]), [0, 16])
