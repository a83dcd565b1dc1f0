"""Transformers 5.23.0: equal prompts that share their blocks run one after the other. Exit status 1: as described."""

import sys

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.scheduler import Scheduler
