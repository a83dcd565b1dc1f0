"""vLLM 0.32.0: a reset between a query and its documents ends the engine of a reranker. Exit status 1: the bug."""

import sys
from types import SimpleNamespace

import torch
from vllm import PoolingParams
from vllm.v1.pool.late_interaction import build_late_interaction_doc_params, build_late_interaction_query_params
from vllm.v1.pool.late_interaction_runner import LateInteractionRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

queries = LateInteractionRunner(enable_flash=False)
worker = SimpleNamespace(late_interaction_runner=queries, encoder_cache={})
query = PoolingParams(late_interaction_params=build_late_interaction_query_params("query", query_uses=1))
document = PoolingParams(late_interaction_params=build_late_interaction_doc_params("query"))
queries.postprocess_pooler_output([torch.randn(4, 8)], [query], ["0"], [True])
GPUModelRunner.reset_encoder_cache(worker)  # as a pause does, with its defaults
try:
    queries.postprocess_pooler_output([torch.randn(9, 8)], [document], ["1"], [True])
    print("the document is scored, as expected")
except ValueError as problem:
    sys.exit(f"the document's step ends the engine: {problem} expected: a score, or an error of this request")
