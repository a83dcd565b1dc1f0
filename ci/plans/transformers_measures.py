"""What the plan for Transformers measures beside the suites: tokens in a second, and tables over reports of steps.

`speed DEVICE`, `faults STEPS` (which injected faults were detected) and `noise STEPS` (false positives among all
answers of an engine without a fault). STEPS is the folder of all steps. Each writes a JSON file in the current folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

WRONG = ("stale state", "corrupt", "crash", "hang", "not the cache")  # failure classes of wrong or missing answers
CONFIDENCE = 0.95
PROMPT, ANSWER = 96, 32  # tokens


def speed(device: str) -> dict[str, Any]:
    """Return tokens in a second of the tiny model, alone and in batches, with and without CUDA graphs."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    from coldproof.adapters.transformers.releases import configuration_of
    from coldproof.harness.execution.models.cache_folder import generated_files
    from coldproof.harness.execution.models.lora import tiny_model

    rows = []
    folder = tiny_model(generated_files())
    for numbers in ("float32", "float16", "bfloat16"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, numbers), attn_implementation="sdpa")
        model = model.to(device).eval()
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=ANSWER)
        for graphs in (False, True) if device == "cuda" else (False,):
            for requests in (1, 64):
                fields = {"page_size": 16, "num_blocks": 1024, "max_batch_tokens": 4096, "use_cuda_graph": graphs}
                most = model.config.vocab_size - 10
                prompts = [[10 + (i * 7 + j) % most for j in range(PROMPT)] for i in range(requests)]
                rows.append(measured(model, prompts, generation, configuration_of(ContinuousBatchingConfig, fields)))
                rows[-1] |= {"numbers": numbers, "graphs": graphs, "requests": requests}
                print(rows[-1], flush=True)  # noqa: T201 - the step's log
    return {"device": device, "card": torch.cuda.get_device_name() if device == "cuda" else "", "rows": rows}


def measured(model: Any, prompts: list[list[int]], generation: Any, config: Any) -> dict[str, Any]:
    """Return the seconds and the speed of the second of two equal batches."""
    for _ in range(2):
        began = time.perf_counter()
        try:
            model.generate_batch(prompts, generation_config=generation, continuous_batching_config=config)
        except Exception as problem:  # noqa: BLE001 - one way of running that fails is a row of the table
            return {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 4), "tokens_per_second": round(len(prompts) * ANSWER / seconds, 1)}


def faults(steps: Path) -> dict[str, Any]:
    """Return which faults were detected, for each kind of numbers.

    Detected means that the judge called an answer wrong: a run that found no time to confirm it counts as well. Lost
    hits do not count, because the engine has them without a fault.
    """
    rows = [fault_row(events) for events in sorted(steps.glob("fault-*/report/events.ndjson"))]
    shares = defaultdict(list)
    for row in rows:
        shares[row["numbers"]].append(row["detected"])
    return {"detected": {name: f"{sum(found)} of {len(found)}" for name, found in shares.items()}, "rows": rows}


def fault_row(events: Path) -> dict[str, Any]:
    """Return what a run against a fault showed, from its events. `excess`: in units of the tolerance."""
    import msgspec

    from coldproof.harness.power.noise.with_faults import deviations
    from coldproof.harness.release.bundle.run_folder import Stored
    from coldproof.reports.assemble.assemble import EXAMPLE

    _, numbers, fault = events.parent.parent.name.split("-", 2)
    row: dict[str, Any] = {"fault": fault, "numbers": numbers, "detected": False, "requests": 0, "excess": 0.0}
    for line in events.read_bytes().splitlines(keepends=True):
        if not (line.startswith(EXAMPLE) and line.endswith(b"\n")):
            continue
        stored = msgspec.json.decode(line, type=Stored)
        row["excess"] = max([row["excess"], *deviations(stored)])
        row["requests"] += 0 if row["detected"] else len(stored.history.outcomes)
        wrong = [one for one in stored.findings if one.failure_class.value in WRONG]
        if wrong and not row["detected"]:
            row |= {"detected": True, "by": stored.requirement, "class": wrong[0].failure_class.value}
            row |= {"sentence": wrong[0].sentence, "rule": str(stored.rule)}
    results = events.with_name("results.json")
    if results.is_file():
        row["acted"] = (json.loads(results.read_text()).get("fault") or {}).get("acted")
    return row


def noise(steps: Path) -> dict[str, Any]:
    """Return the false positives among all compared answers, with the exact upper bound of their rate."""
    rows = []
    for file in sorted(steps.glob("noise-*/noise/clean/*.json")):
        if file.name.endswith(".level.json"):
            continue
        found = json.loads(file.read_text())
        values = sorted((row["excess"] for row in found["rows"]), reverse=True)
        rows.append(
            {
                "step": file.parts[-4],
                "answers": len(values),
                "hits": sum(row["hit"] for row in found["rows"]),
                "diverged": sum(row["parted"] for row in found["rows"]),
                "flagged": sum(row["accused"] for row in found["rows"]),
                "furthest": values[0] if values else None,
                "seconds": found["seconds"],
                "band": found["band"],
                "rule": found["rule"],
            }
        )
    by_kind = {}
    for kind in sorted({row["step"].split("-")[1] for row in rows}):
        mine = [row for row in rows if row["step"].split("-")[1] == kind]
        by_kind[kind] = bound(sum(row["flagged"] for row in mine), sum(row["answers"] for row in mine))
    whole = bound(sum(row["flagged"] for row in rows), sum(row["answers"] for row in rows))
    return {"all": whole, "kinds": by_kind, "rows": rows}


def bound(flagged: int, answers: int) -> dict[str, Any]:
    """Return the Clopper-Pearson upper bound of a rate, by bisection of the binomial tail."""
    low, high = 0.0, 1.0
    for _ in range(60) if answers else ():
        middle = (low + high) / 2
        low, high = (middle, high) if tail(flagged, answers, middle) > 1 - CONFIDENCE else (low, middle)
    return {"answers": answers, "flagged": flagged, "rate_at_most": high, "confidence": CONFIDENCE}


def tail(flagged: int, answers: int, rate: float) -> float:
    """Return the probability of at most so many flagged answers."""
    if flagged >= answers or rate <= 0:
        return 1.0
    term = total = (1 - rate) ** answers
    for i in range(1, flagged + 1):
        term *= (answers - i + 1) / i * rate / (1 - rate)
        total += term
    return total


def main(words: list[str]) -> None:
    """Measure, and write the result beside the log."""
    what, where = words
    found = speed(where) if what == "speed" else {"faults": faults, "noise": noise}[what](Path(where))
    Path(f"{what}.json").write_text(json.dumps(found, indent=1))
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))  # noqa: T201 - the step's log


if __name__ == "__main__":
    main(sys.argv[1:])
