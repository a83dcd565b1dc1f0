"""Requests and answers of the endpoints of SGLang's stand-in other than /generate, field by field as in 0.5.23."""

from __future__ import annotations

from typing import Any

from support.fake_reply import rendered

ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
HEADROOM = 2  # /v1/responses allows this many tokens less than requested


def as_generate_body(path: str, body: dict[str, Any], adapters: dict[str, str]) -> dict[str, Any]:
    """Return a request of an endpoint as a request of /generate. An adapter is known by its own name and as
    BASE:ADAPTER.
    """
    name = body["model"].rpartition(":")[2]
    heard = {"lora_path": name} if name in adapters else {}
    heard |= {key: body[key] for key in ("cache_salt", "extra_key", "priority") if key in body}
    most = body["max_output_tokens"] - HEADROOM if path == "/v1/responses" else body["max_tokens"]
    sampling = {"max_new_tokens": most} | {key: body[key] for key in ("stop", "regex") if key in body}
    scores = {"return_logprob": True} if body.get("logprobs") else {}
    return {"input_ids": prompt_of(path, body), "sampling_params": sampling, "stream": False, **heard, **scores}


def prompt_of(path: str, body: dict[str, Any]) -> list[int]:
    """Return the token ids of a prompt. For messages they are those of the chat template."""
    match path:
        case "/v1/completions":
            return list(body["prompt"])
        case "/v1/responses":
            return list(rendered(body["input"]))
        case "/v1/messages":
            return list(rendered([{"role": "system", "content": body["system"]}, *body["messages"]]))
    return list(rendered(body["messages"]))


def as_endpoint_answer(path: str, body: dict[str, Any], prompt: list[int], said: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of /generate in the form of an endpoint. /v1/messages leaves out a count of 0."""
    ids, text, about = said["output_ids"], said["text"], said["meta_info"]
    hit, end = about.get("cached_tokens"), about["finish_reason"]["type"]
    details = None if hit is None else {"cached_tokens": hit}
    match path:
        case "/v1/responses":
            part = {"type": "output_text", "text": text}
            status = "incomplete" if end == "length" else "completed"
            usage = {"output_tokens": len(ids), "input_tokens_details": details}
            return {"output": [{"type": "message", "content": [part]}], "status": status, "usage": usage}
        case "/v1/messages":
            usage = {"input_tokens": len(prompt) - (hit or 0), "output_tokens": len(ids)}
            usage |= {"cache_read_input_tokens": hit} if hit else {}
            reason = {"length": "max_tokens", "stop": "end_turn"}[end]
            return {"content": [{"type": "text", "text": text}], "stop_reason": reason, "usage": usage}
        case "/v1/completions":
            top = [{chr(row[1]): row[0] for row in rows} for rows in about.get("output_top_logprobs", ())]
            scores = {"token_logprobs": [row[0] for row in about.get("output_token_logprobs", ())], "top_logprobs": top}
            choice = {"index": 0, "text": text, "token_ids": ids, "prompt_token_ids": prompt, "finish_reason": end}
            choice["logprobs"] = scores if body.get("logprobs") else None
            return {"choices": [choice], "usage": {"prompt_tokens_details": details}}
    content = [
        {"logprob": row[0], "top_logprobs": [{"logprob": one[0]} for one in rows]}
        for row, rows in zip(about.get("output_token_logprobs", ()), about.get("output_top_logprobs", ()), strict=True)
    ]
    choice = {"index": 0, "message": {"content": text}, "response_token_ids": ids, "prompt_token_ids": prompt}
    choice |= {"finish_reason": end, "logprobs": {"content": content} if content else None}
    return {"choices": [choice], "usage": {"prompt_tokens_details": details}}
