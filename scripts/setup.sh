# Set-up shared by scripts/install, scripts/demo and scripts/test; sourced, not run.
# Makes .venv in the checkout, once: later runs see the stamp and go on at once.
# `set_up train` installs what users need, `set_up dev` the tools of contributors as well.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
STAMP="$VENV/.psyche-stamp"       # what is installed, a line for each set of packages; written last
UNFINISHED="$ROOT/.setup.unfinished" # an installation has begun and not ended; outside, for it must outlive the folder
UV_VERSION="0.13.9"
DOWNLOAD="3.3 GB"
INSTALLED="6.2 GB"
NEED_FREE_MB=8000
child=""

say() { printf '%s\n' "$*"; }

fail() {
  printf '\n%s\n' "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# Long commands run beside this shell in a process group of their own (set -m), so that a signal is heard at once
# and takes along whatever they started.
guarded() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  local status=0
  wait "$child" || status=$?
  child=""
  return "$status"
}

end_child() {
  [ -n "$child" ] || return 0
  kill -TERM -- "-$child" 2>/dev/null || true
  local tenth
  for tenth in {1..30}; do
    kill -0 -- "-$child" 2>/dev/null || return 0
    [ "$tenth" -lt 20 ] || kill -KILL -- "-$child" 2>/dev/null || true
    sleep 0.1
  done
}

interrupted() {
  trap - INT TERM HUP
  end_child
  say ""
  say "Stopped. Nothing is left running; the next run picks up from here."
  exit 130
}
trap interrupted INT TERM HUP

find_python() {
  local candidate
  for candidate in "${PSYCHE_PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "Python 3.11, 3.12 or 3.13 is needed, and none was found." \
    "Debian 12, Ubuntu 24.04 and later have it:  sudo apt-get install -y python3 python3-venv" \
    "Another place:                              PSYCHE_PYTHON=/path/to/python3.12 bash $0"
}

check_machine() {
  [ "$(uname -s)" = Linux ] || fail "Psyche runs on Linux; this is $(uname -s)." "In a Linux machine or container it works as is."
  local missing=()
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  command -v flock >/dev/null 2>&1 || missing+=(util-linux)
  # On x86-64 everything comes as a wheel; elsewhere two packages may have to be compiled.
  if [ "$(uname -m)" != x86_64 ]; then
    command -v gcc >/dev/null 2>&1 || missing+=(gcc)
    "$PYTHON" -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_paths()["include"] + "/Python.h"))' || missing+=(python3-dev)
    [ -e /usr/include/gmp.h ] || compgen -G '/usr/include/*/gmp.h' >/dev/null || missing+=(libgmp-dev)
  fi
  [ ${#missing[@]} -eq 0 ] || fail "Something is missing on this machine. One command brings it:" "sudo apt-get install -y ${missing[*]}"
}

check_disk() {
  local free_mb
  free_mb=$(df -Pm "$ROOT" | awk 'NR == 2 {print $4}')
  [ "$free_mb" -ge "$NEED_FREE_MB" ] || fail "Too little disk: $free_mb MB free at $ROOT, $NEED_FREE_MB MB needed." \
    "PyTorch brings its CUDA libraries along, also where there is no GPU: $INSTALLED installed."
}

# A line for the set of packages `train` or `dev`: its name, and a digest of what it depends on.
wanted_stamp() {
  local digest
  digest="$(
    {
      cat "$ROOT/requirements/$1.lock" "$ROOT/pyproject.toml"
      printf '%s\n' "$UV_VERSION"
      "$PYTHON" -c 'import os, sys; print(sys.version, os.path.realpath(sys.base_prefix))'
    } | sha256sum | cut -d ' ' -f 1
  )"
  printf '%s %s\n' "$1" "$digest"
}

# The set of packages is installed in the wanted versions.
is_installed() {
  [ -e "$STAMP" ] && [ ! -e "$UNFINISHED" ] && grep -qxF "$(wanted_stamp "$1")" "$STAMP"
}

# dev has everything of train. Where dev was installed it is kept up to date, also by those who need only train.
choose_packages() {
  if [ "$1" = dev ] || grep -q '^dev ' "$STAMP" 2>/dev/null; then printf dev; else printf train; fi
}

# Whether .venv is an environment of its own. One that was interrupted while it was made or removed may lead to the
# machine's own Python, into which nothing must be installed.
is_own_environment() {
  [ -e "$VENV/pyvenv.cfg" ] && "$VENV/bin/python" - "$VENV" <<'END' 2>/dev/null
import os, sys
import pip
here = os.path.realpath(sys.argv[1])
is_own = os.path.realpath(sys.prefix) == here and os.path.realpath(pip.__file__).startswith(here + os.sep)
sys.exit(sys.prefix == sys.base_prefix or not is_own)
END
}

# What is there already is kept where it is whole: uv then installs only what has changed.
make_venv() {
  rm -rf "$VENV".old.* "$VENV/bytecode"
  if [ -e "$VENV" ] && { [ -e "$UNFINISHED" ] || ! is_own_environment || ! has_right_python; }; then
    mv "$VENV" "$VENV.old.$$"
    guarded rm -rf "$VENV.old.$$"
  fi
  touch "$UNFINISHED"
  [ -e "$VENV" ] || guarded "$PYTHON" -m venv "$VENV"
  is_own_environment || fail "$VENV could not be made into an environment of its own." "Remove it and run this again: rm -rf $VENV"
}

has_right_python() {
  [ "$("$VENV/bin/python" -V)" = "$("$PYTHON" -V)" ]
}

install_packages() {
  local lock="requirements/$1.lock"
  export PIP_REQUIRE_VIRTUALENV=1 UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_NO_PROGRESS=1
  local pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
  # uv does not read pip's settings: pass a mirror on where the user has set one.
  local index
  index="$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)"
  index="${PIP_INDEX_URL:-$index}"
  if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then export UV_DEFAULT_INDEX="$index"; fi
  local uv=("$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps)
  cd "$ROOT"
  if guarded "${pip[@]}" "uv==$UV_VERSION" && guarded "${uv[@]}" -r "$lock" && guarded "${uv[@]}" -e .; then
    return
  fi
  say "uv did not manage; trying pip, which takes about two minutes more."
  guarded "${pip[@]}" --no-deps -r "$lock" && guarded "${pip[@]}" --no-deps -e . ||
    fail "The installation failed; what went wrong stands above." \
      "Without a network nothing can be installed; behind a proxy set https_proxy, with an own certificate SSL_CERT_FILE." \
      "It is safe to run this again."
}

# Everything that the lock names is there, in that version.
check_packages() {
  "$VENV/bin/python" - "$ROOT/requirements/$1.lock" <<'END' || fail "The installation is not whole (above)." "Run this again."
import sys
from importlib.metadata import PackageNotFoundError, version

missing = []
for line in open(sys.argv[1]):
    name, _, wanted = line.strip().partition("==")
    try:
        if wanted and version(name) != wanted:
            missing.append(f"{name} is {version(name)}, not {wanted}")
    except PackageNotFoundError:
        missing.append(f"{name} is missing")
sys.exit("\n".join(missing) or None)
END
}

# Where Python was told to write no bytecode beside the sources (many containers do), it is kept in .venv: else every
# process would compile what it imports, and a client or a trainer would need three times as long to start.
keep_bytecode() {
  [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || return 0
  unset PYTHONDONTWRITEBYTECODE
  export PYTHONPYCACHEPREFIX="$VENV/bytecode"
}

# The set of packages: train or dev (the default).
set_up() {
  local wanted="${1:-dev}" packages
  keep_bytecode
  PYTHON="$(find_python)"
  check_machine
  if is_installed "$wanted"; then return; fi
  exec 9>"$ROOT/.setup.lock"
  if ! flock -n 9; then
    say "Another set-up is at work in this checkout; waiting for it (at most 30 minutes)."
    guarded flock -w 1800 9 || fail "The other set-up did not end within 30 minutes." "Look for it with: fuser -v $ROOT/.setup.lock"
  fi
  if ! is_installed "$wanted"; then
    [ -e "$STAMP" ] || check_disk
    if [ -e "$STAMP" ]; then
      say "Bringing .venv up to date: seconds, unless versions have changed."
    else
      say "Setting up .venv with $("$PYTHON" -V), once: up to $DOWNLOAD to download, $INSTALLED on disk."
      say "That takes half a minute on a fast network, about 5 minutes at 100 Mbit/s. Ctrl-C is safe."
    fi
    local started=$SECONDS
    packages="$(choose_packages "$wanted")"
    make_venv
    install_packages "$packages"
    check_packages "$packages"
    { wanted_stamp train && { [ "$packages" = train ] || wanted_stamp dev; }; } >"$STAMP.part"
    mv "$STAMP.part" "$STAMP"
    rm -f "$UNFINISHED"
    say "Set up in $((SECONDS - started)) s ($(du -sm "$VENV" 2>/dev/null | cut -f 1) MB)."
  fi
  exec 9>&-
}
