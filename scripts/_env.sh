# Sourced by the other scripts: makes .venv in the checkout as requirements.lock says, once.
# Afterwards .venv/bin is first on PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

UV_VERSION=0.13.9

fail() { echo "error: $*" >&2; exit 1; }

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "Python 3.11 or newer is needed; name it in PYTHON, for instance PYTHON=python3.12"

# one install at a time: two scripts may start at once
exec 9>.venv.lock
flock 9
wanted=$(cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)
if [ "$(cat .venv/installed 2>/dev/null)" != "$wanted" ]; then
    echo "== Python packages into .venv (the first time about two minutes: torch is large)"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || {
        rm -rf .venv
        "$python" -m venv .venv || fail "Python's venv module is needed (Debian: python3-venv)"
    }
    .venv/bin/python -m pip install --quiet "uv==$UV_VERSION"
    .venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
    echo "$wanted" > .venv/installed
fi
flock -u 9
exec 9>&-

export PATH="$PWD/.venv/bin:$PATH"
