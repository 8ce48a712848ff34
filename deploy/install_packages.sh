#!/usr/bin/env bash
# Installs the Debian 12 packages that Koine needs; does nothing (and needs no network) where they are all there.
#
#   deploy/install_packages.sh [build|tests|container|runtime]...     default: build
#
#   build      compile the server, the clients and the tools
#   tests      build, and what tests/*.sh need
#   container  what deploy/container/check.sh needs
#   runtime    only the shared libraries that the built programs load
#   --list     print the packages instead of installing them
set -euo pipefail

build=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libdnnl-dev libabsl-dev libsentencepiece-dev libhwy-dev
  libspdlog-dev libcli11-dev nlohmann-json3-dev libcpp-httplib-dev prometheus-cpp-dev
  libicu-dev libssl-dev zlib1g-dev
)
tests=(
  "${build[@]}"
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev libomp-14-dev llvm-14
  python3 python3-numpy python3-venv shellcheck
)
container=(buildah debootstrap)
runtime=(
  libgrpc++1.51 libprotobuf32 libdnnl2 libabsl20220623
  libsentencepiece0 libhwy1 libspdlog1.10 libgomp1
  libcpp-httplib0.11 libprometheus-cpp-core1.0 libicu72 libssl3 zlib1g
)

wanted=()
list_only=false
[[ $# -gt 0 ]] || set -- build
for what in "$@"; do
  case "$what" in
    build) wanted+=("${build[@]}") ;;
    tests) wanted+=("${tests[@]}") ;;
    container) wanted+=("${container[@]}") ;;
    runtime) wanted+=("${runtime[@]}") ;;
    --list) list_only=true ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *)
      echo "install_packages.sh: '$what' is none of build, tests, container, runtime" >&2
      exit 2
      ;;
  esac
done
if $list_only; then
  [[ ${#wanted[@]} -gt 0 ]] || wanted=("${build[@]}")
  printf '%s\n' "${wanted[@]}" | sort -u
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "install_packages.sh: there is no apt-get here; Koine is built and tested on Debian 12" >&2
  exit 1
fi
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  # A package that exists for several architectures prints its status once for each.
  [[ "$status" == installed* ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_packages.sh: run this as root; missing packages: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install_missing() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}
echo "installing: ${missing[*]}"
# The lists may be absent or older than the mirror: fetch them only where they do not serve.
if ! apt-cache show "${missing[@]}" >/dev/null 2>&1 || ! install_missing; then
  "${as_root[@]}" apt-get update -q
  install_missing
fi
