"""Adapters are found by entry point, loaded only when asked for, and a broken one is told of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from aligner import registry
from aligner.capture.script import ImportWatcher
from aligner.errors import AdapterError


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package that brings an adapter, as pip would: a module and its metadata on the path."""

    def install(name, source, module=None):
        module = module or f"{name}_adapter"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        metadata = tmp_path / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[aligner.adapters]\n{name} = {module}:Adapter\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_ours_come_through_the_same_door():
    assert {"torch", "mindspore"} <= set(registry.available())


def test_a_third_partys_adapter_is_found_and_loaded(install):
    install("abacus", "class Adapter:\n    name = 'abacus'\n")
    assert "abacus" in registry.available()
    assert "abacus_adapter" not in sys.modules, "listing must load nothing"
    assert registry.load("abacus").name == "abacus"


def test_what_a_framework_needs_before_its_import_is_done_just_before(install, tmp_path, monkeypatch):
    """And not for another framework; a watcher of imports asks for it at the right moment."""
    install("abacus", "class Adapter: pass\nready = []\ndef make_ready(): ready.append('made ready')\n")
    entry_points = tmp_path / "abacus_adapter-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[aligner.before_import]\nabacus = abacus_adapter:make_ready\n")
    (tmp_path / "abacus.py").write_text("from abacus_adapter import ready\nready.append('imported')\n")
    registry.prepare("torch")
    assert "abacus_adapter" not in sys.modules
    told = []
    with ImportWatcher(["abacus", "json"], told.append, registry.prepare):
        assert find_spec("abacus") is not None  # as many programs do that ask what is installed
        import abacus  # a module that this test has made

    assert abacus.ready == ["made ready", "imported"]
    assert told == ["json", "abacus"]


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(AdapterError) as error:
        registry.load("pytorch")
    assert error.value.message == "adapter-unknown"
    assert "torch" in str(error.value)
    assert "mindspore" in error.value.text("zh")


@pytest.mark.parametrize(
    "source",
    ["import a_framework_nobody_has", "class Other: pass", "raise OSError('no driver\\nsecond line')"],
    ids=["absent", "no such class", "raises"],
)
def test_an_adapter_that_does_not_load_is_told_of_with_the_reason(install, source):
    install("broken", source)
    with pytest.raises(AdapterError) as error:
        registry.load("broken")
    assert error.value.message == "adapter-broken"
    assert error.value.__cause__ is not None
    assert "second line" not in str(error.value)


def test_the_adapter_of_an_object_is_found(install, monkeypatch):
    install(
        "abacus", "class Adapter:\n    name = 'abacus'\n    def is_model(self, value): return hasattr(value, 'beads')\n"
    )
    model = type("Model", (), {"beads": 10})()
    with pytest.raises(AdapterError) as error:
        registry.of(model)  # its framework is not imported, so the object cannot be one of its models
    assert error.value.message == "model-unknown"
    monkeypatch.setitem(sys.modules, "abacus", sys)
    assert registry.of(model).name == "abacus"


def test_a_broken_adapter_stands_in_nobody_elses_way(install, monkeypatch):
    install("aaa_broken", "raise OSError('no driver')")
    install("abacus", "class Adapter:\n    is_model = staticmethod(lambda value: hasattr(value, 'beads'))\n")
    for name in ("aaa_broken", "abacus"):
        monkeypatch.setitem(sys.modules, name, sys)
    assert registry.of(type("Model", (), {"beads": 10})()).is_model
    foreign = type("Model", (), {"__module__": "aaa_broken.nn"})()
    with pytest.raises(AdapterError) as error:
        registry.of(foreign)
    assert error.value.message == "adapter-broken"


def test_an_imitation_in_torchs_place_has_no_torch_models(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch import nn\nclass Tensor: pass\n__version__ = '9'\n")
    (package / "nn.py").write_text("class Module: pass\nclass Parameter: pass\nfunctional = None\n")
    (package / "version.py").write_text("")
    program = """
from torch import nn
from aligner import registry
from aligner.errors import AdapterError
for ask in (lambda: registry.load("torch"), lambda: registry.of(nn.Module())):
    try:
        ask()
    except AdapterError as error:
        print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["torch-imitated"] * 2, done.stderr


def test_an_object_of_no_framework_is_told_its_type():
    with pytest.raises(AdapterError) as error:
        registry.of(object())
    assert "builtins.object" in str(error.value)


def test_looking_for_adapters_imports_no_framework():
    program = (
        "import sys; from aligner import registry; registry.available();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'mindspore', 'aligner_hooks.torch_')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_torch_module_belongs_to_torch():
    torch = pytest.importorskip("torch", reason="needs a real net")
    assert registry.of(torch.nn.Linear(1, 1)).name == "torch"
    with pytest.raises(AdapterError, match=r"builtins\.type"):
        registry.of(torch.nn.Linear)
