#!/bin/sh
# Build the environments beside the main one (CONTRIBUTING.md has the table) and run in each the tests that fit it.
# Usage: sh tests/environments.sh old bare39 bare311 mindtorch mindnlp
set -eu

# python3.9 by name, else wherever pyenv keeps it.
find_python() {
    for candidate in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$candidate" -c 'pass' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python $1 found; install it or put it on PATH." >&2
    exit 1
}

# $1 name, $2 Python version, rest: packages beside aligner and pytest
build() {
    name=$1
    version=$2
    shift 2
    venv=.venv-$name
    rm -rf build/lib build/bdist.*  # what an earlier build left there would go into the wheel
    if [ ! -e "$venv/.ready" ] || [ constraints.txt -nt "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
        "$(find_python "$version")" -m venv "$venv"
        "$venv/bin/python" -m pip install -q -c constraints.txt pytest pytest-timeout pytest-xdist hypothesis "$@" .
        touch "$venv/.ready"
    else
        "$venv/bin/python" -m pip install -q --no-deps --force-reinstall .
    fi
}

# The same with one of the two packages called mindtorch, which pin other versions of MindSpore and need little of what
# they ask for. $1 name, which is that of the distribution too; rest: packages beside aligner and pytest.
build_mindtorch() {
    name=$1
    shift
    venv=.venv-$name
    rm -rf build/lib build/bdist.*
    if [ ! -e "$venv/.ready" ] || [ constraints.txt -nt "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
        "$(find_python 3.11)" -m venv "$venv"
        { grep -v '^mindspore==' constraints.txt; sed -n "s/^#$name: //p" constraints.txt; } >"$venv/constraints.txt"
        "$venv/bin/python" -m pip install -q -c "$venv/constraints.txt" pytest pytest-timeout pytest-xdist hypothesis "$@" .
        "$venv/bin/python" -m pip install -q -c "$venv/constraints.txt" --no-deps "$name"
        # Kernels for other devices are most of MindSpore's size.
        plugins=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mindspore/lib/plugin
        rm -rf "$plugins"/gpu* "$plugins"/ascend "$plugins"/libmindspore_gpu* "$plugins"/libmindspore_ascend*
        touch "$venv/.ready"
    else
        "$venv/bin/python" -m pip install -q --no-deps --force-reinstall .
    fi
}

# What a torch machine hands over: dumps of references, captured in the main environment.
references=$(pwd)/build/references
mkdir -p "$references"
for sample in conv_valid lenet_bn transformer lstm renamed; do
    .venv/bin/python -m aligner capture -q "samples/$sample/reference.py:build" -o "$references/$sample.h5" --force
done
# A net beside itself, for the environments that have no framework to run one.
for sample in conv_valid lenet_bn; do
    .venv/bin/python -m aligner capture -q "samples/$sample/reference.py:build" --from "$references/$sample.h5" \
        -o "$references/${sample}_again.h5" --force
done

for net in lenet residual operations; do
    .venv/bin/python -m aligner capture -q "tests/endtoend/mindtorch_nets.py:reference_$net" \
        -o "$references/mindtorch_$net.h5" --force
done

for training in own sgd scheduled adamw; do
    .venv/bin/python -m aligner capture -q "tests.endtoend.mindtorch_trainings:reference_$training" \
        -o "$references/mindtorch_trained_$training.h5" --force
done

everywhere="tests/unit tests/properties tests/adapters tests/test_*.py tests/endtoend/test_old_image.py"
with_mindtorch="tests/unit/dump tests/adapters/test_mindtorch.py tests/endtoend/test_mindtorch_nets.py tests/endtoend/test_mindtorch_trainings.py"
for name in "$@"; do
    tests=$everywhere
    echo "== $name"
    case $name in
    old) build old 3.9 mindspore ;;
    bare39) build bare39 3.9 ;;
    bare311) build bare311 3.11 ;;
    mindtorch)
        build_mindtorch mindtorch mindspore-dev ml_dtypes torch
        tests=$with_mindtorch
        ;;
    mindnlp)
        build_mindtorch mindnlp mindspore ml_dtypes safetensors regex tqdm requests typing_extensions
        tests=$with_mindtorch
        ;;
    *)
        echo "Unknown environment $name; known: old bare39 bare311 mindtorch mindnlp" >&2
        exit 2
        ;;
    esac
    # shellcheck disable=SC2086 # several words are meant
    ALIGNER_REFERENCES=$references ".venv-$name/bin/python" -m pytest -q -n "${JOBS:-2}" --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $tests
done
