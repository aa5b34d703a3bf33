#!/usr/bin/env bash
# Installs those of these Debian packages that are missing, as root. One call at a time: steps that run
# beside each other would stand in each other's way.
#
#   ci/install.sh PACKAGE...
set -euo pipefail
missing=()
for package; do
    dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
exec 9> "${TMPDIR:-/tmp}/swarm-install-$UID.lock"
flock 9
root() { if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi; }
root apt-get update -qq
root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
