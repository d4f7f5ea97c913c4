"""With numpy and h5py alone every module imports, and the command's help needs not even those."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

BLOCK = """
import importlib.abc, importlib.util, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}:
            raise ImportError('blocked for this test: ' + name)
sys.meta_path.insert(0, Refuse())
"""


def modules():
    found = []
    for path in sorted((ROOT / "aligner").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "demo_nets" in parts or parts == ("aligner", "__main__") or "testing" in parts:
            continue  # nets for users to read; runs the command; needs pytest
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_every_module_imports_without_a_framework():
    blocked = {"torch", "mindspore", "mindtorch", "pytest", "IPython"}
    code = BLOCK.format(blocked=blocked) + "\n".join(f"import {name}" for name in modules())
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["capture", "--help"], ["compare", "--help"]])
def test_help_needs_neither_numpy_nor_h5py(arguments):
    code = BLOCK.format(blocked={"numpy", "h5py", "torch", "mindspore"})
    done = python(code + f"from aligner.cli import main\nsys.exit(main({arguments!r}))")
    assert done.returncode == 0, done.stderr
    assert "aligner" in done.stdout


def test_public_names_are_there():
    done = python("import aligner\nfor name in aligner.__all__: assert callable(getattr(aligner, name)), name")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["aligner.compare.verdict", "aligner.capture.session", "aligner.replay.transfer"])
def test_packages_can_be_called_in_every_import_order(first):
    done = python(f"import {first}\nimport aligner\nassert callable(aligner.compare) and callable(aligner.capture)")
    assert done.returncode == 0, done.stderr


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by it, for the folders of tests are no packages."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
