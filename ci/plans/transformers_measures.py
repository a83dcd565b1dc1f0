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
                fields = {"num_blocks": 1024, "max_batch_tokens": 4096, "use_cuda_graph": graphs}
                most = model.config.vocab_size - 10
                prompts = [[10 + (i * 7 + j) % most for j in range(PROMPT)] for i in range(requests)]
                rows.append(measured(model, prompts, generation, ContinuousBatchingConfig(**fields)))
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
    """Return which faults were detected, for each kind of numbers."""
    rows = []
    for file in sorted(steps.glob("fault-*/report/results.json")):
        found = json.loads(file.read_text())
        numbers = file.parent.parent.name.partition("-")[2].partition("-")[0]
        classes = sorted({case["failure_class"] for case in found["cases"]})
        rows.append(
            {
                "fault": (found.get("fault") or {}).get("name"),
                "numbers": numbers,
                "acted": (found.get("fault") or {}).get("acted"),
                "detected": any(one in WRONG for one in classes),
                "classes": classes,
                "requests": found["totals"]["requests"],
                "rule": (found.get("calibration") or {}).get("rule"),
            }
        )
    shares = defaultdict(list)
    for row in rows:
        shares[row["numbers"]].append(row["detected"])
    return {"detected": {name: f"{sum(all_)} of {len(all_)}" for name, all_ in shares.items()}, "rows": rows}


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
