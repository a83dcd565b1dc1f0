#!/usr/bin/env bash
# What a GPU's noise is, and what a prefix cache does under it: Transformers' continuous batching, which starts on one GPU
# without a server, with the tiny model in three kinds of numbers. In a checkout, on the GPU machine:
#
#   pip install '.[transformers]'          # brings torch's default build, for CUDA
#   ci/gpu.sh OUT [DEVICE] [pytest options, such as --budget 20m]
#
# Each kind has its report in OUT; the last lines say how answers were compared, and so how far cold ones lay apart. The
# exit code is the first that is not 0. Reports join others with `coldproof side-by-side`.
set -euo pipefail
out=${1:?usage: ci/gpu.sh OUT [DEVICE] [pytest options]}
device=${2:-cuda}
shift "$(($# < 2 ? $# : 2))"
worst=0
for numbers in float32 float16 bfloat16; do
  code=0
  python -m pytest suites --engine transformers --cells transformers \
    --engine-args "device=$device dtype=$numbers" \
    --known-issues adapters/transformers/known_issues.toml --report-dir "$out/$numbers" "$@" || code=$?
  [ "$worst" -ne 0 ] || worst=$code
done
for numbers in float32 float16 bfloat16; do
  python - "$out/$numbers/results.json" <<'END' || true
import json, pathlib, sys

path = pathlib.Path(sys.argv[1])
found = json.loads(path.read_text())["calibration"] if path.is_file() else None
print(f"{path.parent.name}: {found['rule'] if found else 'no comparison rule was found: see the log'}")
if found and found.get("band"):
    band = found["band"]
    print(f"  {band['positions']} scores of cold answers: half within {band['half_nats']:.3g} nats, 99 % within "
          f"{band['most_nats']:.3g}, all within {band['all_nats']:.3g}; at most {band['flips']:.2%} of the tokens flip")
END
done
exit "$worst"
