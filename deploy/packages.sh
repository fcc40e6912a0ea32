#!/usr/bin/env bash
# The Debian packages that `make test` needs for the real parts. As root it installs what is missing; otherwise it
# says what is missing, and the tests concerned fail unless SYMPHONY_SKIP_MISSING_TOOLS=1.
set -euo pipefail
packages=(
  prometheus systemd                                                    # dashboards, deploy
  tshark tcpdump                                                        # captures
  chromium                                                              # the live page
  openmpi-bin                                                           # ranks started by mpirun
  qemu-system-x86 busybox-static cpio kmod iproute2 nftables            # the soft-RoCE VM
  rdma-core ibverbs-providers perftest python3-pyverbs python3-numpy python3-venv
)
command -v dpkg-query >/dev/null || { echo "packages.sh: no Debian here; the tests of the real parts need: ${packages[*]}"; exit 0; }
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "packages.sh: not installed: ${missing[*]}"
  echo "packages.sh: sudo apt-get install --no-install-recommends ${missing[*]}"
  echo "packages.sh: or let the tests that need them be skipped: SYMPHONY_SKIP_MISSING_TOOLS=1 make test"
  exit 0
fi
echo "packages.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo "packages.sh: apt-get update failed; trying with the package lists that are here" >&2
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
