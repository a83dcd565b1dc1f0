#!/usr/bin/env bash
# The exact layer for one build of vLLM, on a machine without a GPU: a job for pull requests. In a checkout of Coldproof:
#
#   ci/vllm_pull_request.sh VLLM OUT [options of a run, such as --budget 2m]
#
# VLLM is what pip installs (vllm==0.33.0, a wheel for CUDA or ROCm, a nightly build), or the word `installed` for an
# environment that has vLLM already; then Coldproof is added to it. With SOURCE=FOLDER, a checkout of vLLM replaces the
# Python files of the wheel; it is not built. PYTHON chooses the interpreter, ENVIRONMENT the folder that is made with it.
#
# The report is in OUT: index.html, junit.xml, summary.md, and for each violation a case, a script that reproduces it and
# an issue that can be filed. The last line is the verdict. Exit code: 0 conformant; 1 violated, inconclusive or not
# exercised; 3 no vLLM could be installed, or the harness failed; 4 wrong usage; 6 nothing was shown.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: ci/vllm_pull_request.sh VLLM OUT [options of a run]" >&2
  exit 4
fi
vllm=$1 out=$2
shift 2
python=${PYTHON:-python}
started=$SECONDS
if [ "$vllm" = installed ]; then
  "$python" -m pip install --quiet . || exit 3
else
  environment=${ENVIRONMENT:-.tox/vllm-pull-request}
  code=0
  "$python" ci/install_vllm_wheel.py "$vllm" "$environment" ${SOURCE:+"$SOURCE"} || code=$?
  [ "$code" -ne 1 ] || exit 3
  [ "$code" -eq 0 ] || exit "$code"
  python=$environment/bin/python
fi
ready=$SECONDS
code=0
VLLM_TARGET_DEVICE=cpu "$python" -m coldproof run --layers exact --profile smoke \
  --known-issues vllm --report-dir "$out" "$@" || code=$?
verdict="no summary was written"
# With exit code 4 nothing was run, and a summary there is an earlier run's.
[ "$code" -eq 4 ] || verdict=$(sed -n 's/^\*\*\(.*\)\*\*$/\1/p;' "$out/summary.md" | head -n 1) || verdict="no summary was written"
if [ "$code" -eq 1 ] && [ "$vllm" != installed ]; then
  echo "to run a command of the report: export VLLM_TARGET_DEVICE=cpu PATH=$(cd "$environment/bin" && pwd):\$PATH"
fi
echo "$verdict (installed in $((ready - started)) s, tested in $((SECONDS - ready)) s, exit code $code)"
exit "$code"
