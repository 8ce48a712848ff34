#!/usr/bin/env bash
# Builds the container image here and proves that it works. Needs root; Debian packages are the only thing fetched.
#
#   deploy/container/check.sh            keeps the base and the layers in build/container, so that a second run is quick
#   deploy/container/check.sh --clean    removes them first
#
# 1. makes a Debian base with debootstrap, from the mirrors that this machine's apt uses;
# 2. builds deploy/Containerfile on it with buildah (chroot isolation);
# 3. checks the image's configuration: user, entry point, volume, port, health check, labels;
# 4. runs it with buildah as its user, the model mounted read-only, and asks for a translation;
# 5. runs it as process 1 with a read-only root and no capabilities; asks for its health by the binary itself and for a
#    translation; stops it with SIGTERM and wants exit code 0.
# Ends with one line 'N passed, N failed'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly work=$PWD/build/container
readonly koine=build/release/bin/koine
readonly base_image=localhost/koine-check-base:bookworm
readonly image=localhost/koine:check
readonly uid=65532
readonly text="There are invalid values in the input boxes. Please check your inputs."
passed=0
failed=0

die() {
  echo "container check: $*" >&2
  exit 1
}
title() { printf '\n=== %s (%d s)\n' "$*" "$SECONDS"; }
pass() { passed=$((passed + 1)) && echo "ok: $1"; }
fail() { failed=$((failed + 1)) && echo "FAILED: $1"; }
# expect NAME WANTED FOUND
expect() { if [[ "$2" == "$3" ]]; then pass "$1"; else fail "$1: wanted '$2', found '$3'"; fi; }

[[ $(id -u) -eq 0 ]] || die "run this as root: it makes a root file system and mounts"
deploy/install_packages.sh container
mkdir -p "$work"
# A storage of its own: nothing here mixes with images that this machine already has.
buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver "${KOINE_STORAGE_DRIVER:-overlay}" "$@"; }

run_pid=""
containers=()
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  if [[ -n "$run_pid" ]]; then
    local server
    server=$(server_below "$run_pid" || true)
    [[ -z "$server" ]] || kill -KILL "$server" 2>/dev/null || true
    wait "$run_pid" 2>/dev/null || true
  fi
  for container in "${containers[@]}"; do
    buildah umount "$container" >/dev/null 2>&1 || true
    buildah rm "$container" >/dev/null 2>&1 || true
  done
  exit "$code"
}
# server_below PID: the koine-server among the descendants of a process, whichever of its threads made them.
server_below() {
  local child found
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    if [[ "$(cat "/proc/$child/comm" 2>/dev/null)" == koine-server ]]; then
      echo "$child"
      return 0
    fi
    if found=$(server_below "$child"); then
      echo "$found"
      return 0
    fi
  done
  return 1
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [[ "${1:-}" == --clean ]]; then
  command buildah --root "$work/storage" --runroot "$work/run" rmi --all --force >/dev/null 2>&1 || true
  rm -rf "$work/rootfs"
fi

title "client for the check"
deploy/install_packages.sh build
[[ -f build/release/CMakeCache.txt ]] || cmake --preset release -DKOINE_BUILD_TESTS=OFF -DKOINE_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build --preset release --target koine >"$work/client.log" || { tail -n 30 "$work/client.log" && exit 1; }

title "base image"
if ! buildah inspect --type image "$base_image" >/dev/null 2>&1; then
  # "uri suite component" of each Debian index that apt here reads.
  mapfile -t sources < <(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk '$2 ~ /^bookworm(-updates|-security)?$/ && $3 == "main"' | sort -u)
  mirror=$(printf '%s\n' "${sources[@]}" | awk '$2 == "bookworm" { print $1; exit }')
  [[ -n "$mirror" ]] || die "apt's configuration names no mirror of Debian 12 (bookworm)"
  rm -rf "$work/rootfs"
  debootstrap --variant=minbase bookworm "$work/rootfs" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" && die "debootstrap failed"; }
  printf 'deb %s\n' "${sources[@]}" >"$work/rootfs/etc/apt/sources.list"
  # How this machine reaches its mirrors (proxies, certificates, dates), so that apt inside does the same.
  apt-config dump | grep -E '^Acquire::(http|https|Check-)' >"$work/rootfs/etc/apt/apt.conf.d/99-check" || true
  [[ ! -f /etc/ssl/certs/ca-certificates.crt ]] || install -D -m 644 /etc/ssl/certs/ca-certificates.crt \
    "$work/rootfs/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$work"/rootfs/var/cache/apt/archives/*.deb "$work"/rootfs/var/lib/apt/lists/*
  scratch=$(buildah from scratch)
  containers+=("$scratch")
  buildah add --quiet "$scratch" "$work/rootfs" / >/dev/null
  buildah config --cmd /bin/bash --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$scratch"
  buildah commit --quiet "$scratch" "$base_image" >/dev/null
  rm -rf "$work/rootfs"
fi
pass "Debian base from apt's own mirrors"

title "build the image (log: build/container/build.log)"
# Docker format: the OCI one has no HEALTHCHECK.
if buildah bud --isolation chroot --network host --format docker --layers --pull-never \
  --build-arg BASE="$base_image" --build-arg RUNTIME_BASE="$base_image" \
  --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
  --ignorefile deploy/Containerfile.dockerignore -f deploy/Containerfile -t "$image" . >"$work/build.log" 2>&1; then
  pass "deploy/Containerfile builds"
else
  tail -n 40 "$work/build.log"
  die "the image does not build"
fi

title "configuration"
# config TEMPLATE: a field of the image's configuration.
config() { buildah inspect --type image --format "$1" "$image"; }
expect "user is a number and not root" "$uid:$uid" "$(config '{{.Docker.Config.User}}')"
expect "entry point in exec form" "[/usr/local/bin/koine-server]" "$(config '{{.Docker.Config.Entrypoint}}')"
expect "model volume" "map[/models:{}]" "$(config '{{.Docker.Config.Volumes}}')"
expect "ports" "map[50051/tcp:{} 8080/tcp:{}]" "$(config '{{.Docker.Config.ExposedPorts}}')"
expect "health check by the binary itself" "[CMD /usr/local/bin/koine-server --healthcheck]" \
  "$(config '{{.Docker.Config.Healthcheck.Test}}')"
expect "licence label" "Apache-2.0" "$(config '{{index .Docker.Config.Labels "org.opencontainers.image.licenses"}}')"

container=$(buildah from --pull-never "$image")
containers+=("$container")
root=$(buildah mount "$container")
size=$(du -sm --one-file-system "$root" | cut -f1)
echo "the image holds $size MB, of which the Debian base is most"
found=""
for tool in g++ cmake ninja protoc; do [[ ! -e "$root/usr/bin/$tool" ]] || found+=" $tool"; done
expect "no build tools in the runtime" "" "$found"

port=50951
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
address=127.0.0.1:$port
http_port=$((port + 1))
while (exec 3<>"/dev/tcp/127.0.0.1/$http_port") 2>/dev/null; do http_port=$((http_port + 1)); done

# wait_ready COMMAND...: until the command succeeds, at most a minute, and only while the run is alive.
wait_ready() {
  local end=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    [[ $SECONDS -lt $end ]] && kill -0 "$run_pid" 2>/dev/null || return 1
    sleep 0.3
  done
}
# http_status PATH: the first line of the answer.
http_status() {
  exec 4<>"/dev/tcp/127.0.0.1/$http_port" || return 0
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&4
  head -n 1 <&4 | tr -d '\r'
  exec 4>&-
}
translate() { "$koine" translate --server "$address" --from en --to de -- "$text"; }
check_translation() {
  local answer
  if answer=$(translate) && [[ -n "$answer" && "$answer" != "$text" ]]; then
    pass "translation: $answer"
  else
    fail "translation: '${answer:-}'"
  fi
}
# stop_and_expect NAME: SIGTERM to the server, exit code 0 from the run.
stop_and_expect() {
  local server code=0
  server=$(server_below "$run_pid") || die "$1: the server is not among the processes that were started"
  expect "$1: runs as uid $uid" "$uid" "$(awk '$1 == "Uid:" { print $2 }' "/proc/$server/status")"
  kill -TERM "$server"
  wait "$run_pid" || code=$?
  run_pid=""
  expect "$1: SIGTERM ends it with code 0" 0 "$code"
}

title "run with buildah"
# On /mnt: buildah's chroot isolation lays the image's own (empty) volume over one mounted at /models.
buildah run --isolation chroot --network host --user "$uid:$uid" \
  --env KOINE_LISTEN="$address" --env KOINE_HTTP=127.0.0.1:0 --env KOINE_MODEL=/mnt \
  --volume "$PWD/deploy/demo_model:/mnt:ro" "$container" -- /usr/local/bin/koine-server >"$work/run1.log" 2>&1 &
run_pid=$!
if wait_ready translate; then
  check_translation
  stop_and_expect "buildah run"
else
  tail -n 20 "$work/run1.log"
  fail "the server did not come up under buildah run"
  server=$(server_below "$run_pid" || true)
  [[ -z "$server" ]] || kill -KILL "$server"
  wait "$run_pid" || true
  run_pid=""
fi

title "run as process 1, read-only root, no capabilities"
# What a container runtime does with --read-only --cap-drop ALL and the model as a read-only volume: the namespaces'
# first process mounts, enters the image and gives up every privilege before it becomes the server.
# shellcheck disable=SC2016  # expanded by the inner shell
readonly enter='set -eu
  mount --bind "$1" "$1"
  cd "$1"
  mount --bind -o ro "$2" models
  mount -o remount,bind,ro models
  mount -t proc proc proc
  mount --rbind /dev dev
  mount -o remount,bind,ro .
  shift 2
  exec chroot . /usr/bin/setpriv --reuid 65532 --regid 65532 --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs "$@"'
env -i PATH="$PATH" KOINE_MODEL=/models KOINE_LISTEN="$address" KOINE_HTTP="127.0.0.1:$http_port" \
  unshare --mount --pid --fork --kill-child /bin/sh -c "$enter" enter "$root" "$PWD/deploy/demo_model" \
  /usr/local/bin/koine-server >"$work/run2.log" 2>&1 &
run_pid=$!
# inside COMMAND...: a command in the running container, with the container's own variables.
inside() {
  local server
  server=$(server_below "$run_pid") || return 1
  nsenter --target "$server" --mount --pid --root --wd \
    env -i KOINE_MODEL=/models KOINE_LISTEN="$address" "$@"
}
if wait_ready inside /usr/local/bin/koine-server --healthcheck; then
  pass "healthy by koine-server --healthcheck"
  expect "readiness over HTTP" "HTTP/1.1 200 OK" "$(http_status /readyz)"
  server=$(server_below "$run_pid")
  expect "the server is process 1 of its namespace" 1 "$(awk '$1 == "NSpid:" { print $NF }' "/proc/$server/status")"
  expect "the server holds no capability" 0000000000000000 "$(awk '$1 == "CapEff:" { print $2 }' "/proc/$server/status")"
  if inside /usr/bin/touch /probe 2>/dev/null || inside /usr/bin/touch /models/probe 2>/dev/null; then
    fail "the root or the model can be written"
  else
    pass "root and model are read-only"
  fi
  check_translation
  stop_and_expect "process 1"
else
  tail -n 20 "$work/run2.log"
  fail "the server did not become healthy as process 1"
fi
if "$koine" translate --server "$address" --from en --to de -- "$text" >/dev/null 2>&1; then
  fail "something still answers on $address"
else
  pass "nothing answers after the end"
fi

title "done"
echo "$passed passed, $failed failed"
exit $((failed > 0))
