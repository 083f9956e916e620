#!/bin/sh
# make_venv.sh FOLDER: creates a virtual environment with the first Python >= 3.11 on PATH that has venv (or $PYTHON).
set -eu

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    if usable "$python"; then
        echo "Making $1 with $(command -v "$python") ($("$python" --version))"
        rm -rf "$1"
        exec "$python" -m venv "$1"
    fi
done
echo "No Python >= 3.11 with venv on PATH (tried: ${PYTHON:-python3, python3.11 to python3.14}). Install one, or name it: PYTHON=/path/to/python3.12 make install" >&2
exit 1
