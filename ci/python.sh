#!/usr/bin/env bash
# The package for Python: built and installed from this clone by pip into an environment of its own, its types as its stubs say,
# its tests, with real processes that are forked, spawned, killed and stopped, and the examples in Python.
#
#   ci/python.sh [ARGUMENT...]     arguments are for pytest, instead of the examples
set -euo pipefail
cd "$(dirname "$0")/.."
if ! python3 -c 'import ensurepip, venv' 2> /dev/null; then ci/install.sh python3 python3-venv; fi
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")/python"
environment="$target/environment"
if ! [[ -x "$environment/bin/pip" ]]; then python3 -m venv "$environment"; fi
export CARGO_TARGET_DIR="$target" PIP_DISABLE_PIP_VERSION_CHECK=1
"$environment/bin/pip" install --quiet './swarm-kv/bindings/python[test]'
# Beside the package as it is installed, not as it lies in the clone.
"$environment/bin/python" -m pytest --quiet swarm-kv/bindings/python/tests "$@"
if [[ $# -eq 0 ]]; then
    for example in examples/python/*.py; do timeout 120 "$environment/bin/python" "$example"; done
fi
