"""vLLM 0.32.0: a request is sent without the pixels that it needs when it is preempted. Exit status 1: the bug."""

import sys

from vllm import SamplingParams
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.request import Request

span = PlaceholderRange(offset=0, length=16)
pixels = MultiModalKwargsItem.dummy()
image = MultiModalFeatureSpec(data=pixels, modality="image", identifier="image", mm_position=span)
request = Request("0", [7] * 40, SamplingParams(max_tokens=1), None, mm_features=[image])
request.num_computed_tokens = 32  # a hit that covers the image; after a preemption, it may be shorter
sent = NewRequestData.from_request(request, ([1, 2],)).mm_features[0].data
print(f"pixels sent to the worker: {sent is not None}; expected: True, as they are not sent again on a resume")
sys.exit(sent is None)
