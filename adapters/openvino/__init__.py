"""OpenVINO GenAI's continuous batching, in a worker process."""
