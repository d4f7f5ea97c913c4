#!/bin/sh
# The environment of this benchmark, .venv-realports in the root of the checkout: the main one and other people's nets.
# Usage: sh benchmarks/realports/install.sh (PYTHON=python3.11)
set -eu
cd "$(dirname "$0")/../.."
here=benchmarks/realports
venv=.venv-realports
"${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/python" -m pip install -q -c constraints.txt -c "$here/constraints.txt" torch mindspore -e . \
    pyyaml tqdm pillow scipy safetensors huggingface_hub regex
# Without what they ask for: they pin other versions of torch and of MindSpore, and need none of theirs.
"$venv/bin/python" -m pip install -q --no-deps -c "$here/constraints.txt" timm torchvision mindcv
touch "$venv/.ready"
