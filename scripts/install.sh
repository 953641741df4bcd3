#!/bin/sh
# Installs malibu-provider on a Mac from this checkout: checks, the command, its service, its key.
#
#   scripts/install.sh                 install and start the service
#   scripts/install.sh --no-service    only the command
#
# Running it again brings an installation up to date. Nothing needs root.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "install: $*" >&2
    exit 1
}

service=yes
case "${1:-}" in
    "") ;;
    --no-service) service=no ;;
    *) fail "unknown option $1" ;;
esac

[ "$(uname -s)" = Darwin ] || fail "this installs on macOS; on Linux use scripts/quickstart"
# Under Rosetta uname says x86_64 on an Apple silicon Mac too, and MLX would not load.
[ "$(uname -m)" = arm64 ] || fail "an Apple silicon Mac and a terminal that isn't under Rosetta are needed"
release=$(sw_vers -productVersion)
[ "${release%%.*}" -ge 14 ] || fail "macOS 14 or newer is needed; this is $release"
free_kb=$(df -k "$HOME" | awk 'NR == 2 { print $4 }')
[ "$free_kb" -ge 4000000 ] || fail "4 GB of free disk are needed; $((free_kb / 1000000)) GB are free"
command -v uv >/dev/null 2>&1 || fail "uv is needed: brew install uv"

echo "Installing the command …"
uv tool install --quiet --force --python '>=3.11' --constraints constraints.txt .
command=$(uv tool dir --bin)/malibu-provider
"$command" --version
uv tool update-shell --quiet || true

if [ "$service" = no ]; then
    echo "Start it with: malibu-provider start"
    exit 0
fi

"$command" service install
# The first start makes the key; that takes a moment.
tries=0
until "$command" keys show 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "the service doesn't come up; malibu-provider logs tells why"
    sleep 1
done
echo "Installed. How it is: malibu-provider status. What is wrong, if anything: malibu-provider doctor."
