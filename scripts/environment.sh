# Sourced by the other scripts: makes .venv with what this checkout needs, and does nothing when it is up to date.
#
#   make_environment base    to run the product
#   make_environment dev     to check it, too
#
# Needs Python 3.11 or newer; uv is used where it is there.

# What another environment left in this shell must not reach into ours.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_USER PIP_REQUIRE_VIRTUALENV CONDA_PREFIX

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

install_into_venv() {
    local requirement=$1
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable "$requirement"
    else
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
            --constraint constraints.txt --editable "$requirement"
    fi
}

new_venv() {
    local python
    rm -rf .venv
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --python '>=3.11' .venv
        return
    fi
    if ! python=$(find_python); then
        echo "Python 3.11 or newer, with its venv module, is needed (macOS: brew install python;" \
            "Debian: apt-get install python3-venv)." >&2
        return 1
    fi
    "$python" -m venv .venv
}

make_environment() {
    local kind=$1 requirement='.' stamp
    [ "$kind" = dev ] && requirement='.[dev]'
    stamp="$(pwd) $(cat pyproject.toml constraints.txt | cksum)"
    # A development environment holds all of the plain one.
    local made
    for made in ".venv/.made-$kind" .venv/.made-dev; do
        if [ "$(cat "$made" 2>/dev/null)" = "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
            return 0
        fi
    done
    echo "Making the environment in .venv (once; a few minutes on a slow line) …" >&2
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        new_venv || return 1
        install_into_venv "$requirement" || return 1
    elif ! install_into_venv "$requirement"; then
        echo "The old environment can't be brought up to date; making it anew …" >&2
        new_venv && install_into_venv "$requirement" || return 1
    fi
    rm -f .venv/.made-*
    echo "$stamp" >".venv/.made-$kind"
}
