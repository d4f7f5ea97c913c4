"""FILE.py:NAME and package.module:NAME."""

from __future__ import annotations

import sys

import pytest

from aligner.capture import target
from aligner.errors import CaptureError


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("net.py:build", ("net.py", "build")),
        ("a/b c/net.py:build", ("a/b c/net.py", "build")),
        ("shop.net:build", ("shop.net", "build")),
        ("C:\\nets\\net.py:build", ("C:\\nets\\net.py", "build")),
        ("train.py", None),
        ("train.py:", None),
        (":build", None),
        ("train.py:3", None),
        ("net.py:build:x", None),
        ("net.py::build", None),
        ("a:b:c", None),
    ],
)
def test_parse(text, wanted):
    found = target.parse(text)
    assert (found and (found.place, found.name)) == wanted


def test_a_script_may_have_a_colon_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError, match="names no factory"):
        target.check_form("at:12.py")
    (tmp_path / "at:12.py").write_text("")
    target.check_form("at:12.py")
    target.check_form("train.py")


def load(text):
    return target.load(target.parse(text))


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "layers_of_mine.py").write_text("WIDTH = 7\n")
    (tmp_path / "net.py").write_text("from layers_of_mine import WIDTH\ndef build(): return WIDTH\n")
    assert load(f"{tmp_path}/net.py:build")() == 7


def test_a_file_called_like_a_loaded_module_leaves_that_module_alone(tmp_path):
    import json

    (tmp_path / "json.py").write_text("def build(): return 'mine'\n")
    assert load(f"{tmp_path}/json.py:build")() == "mine"
    assert sys.modules["json"] is json


def test_a_module_of_the_working_folder(tmp_path, monkeypatch):
    package = tmp_path / "shop_of_mine"
    package.mkdir()
    (package / "net.py").write_text("def build(): return 'built'\n")
    monkeypatch.chdir(tmp_path)
    assert load("shop_of_mine.net:build")() == "built"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nix.py:build", "nix.py: no such file"),
        ("no_such_module_here:build", "no module 'no_such_module_here'"),
    ],
)
def test_what_is_missing_is_told(text, said):
    with pytest.raises(CaptureError, match=said):
        load(text)


def test_a_wrong_name_lists_the_functions(tmp_path):
    (tmp_path / "net.py").write_text("def build_net(): pass\ndef _hidden(): pass\nbuilt = 3\n")
    with pytest.raises(CaptureError, match="no function 'build' in it; it has: build_net"):
        load(f"{tmp_path}/net.py:build")
    with pytest.raises(CaptureError, match="'built' is a value of type int, not a function; its functions: build_net"):
        load(f"{tmp_path}/net.py:built")


def test_a_place_that_is_no_python_file_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some folder").mkdir()
    (tmp_path / "nets_of_mine").mkdir()
    (tmp_path / "net_of_mine").write_text("def build(): pass\n")
    for place in ("some folder", "nets_of_mine"):
        with pytest.raises(CaptureError, match=f"{place} is a folder.*\n.*{place}/net.py:"):
            load(f"{place}:build")
    with pytest.raises(CaptureError, match=r"does not end in \.py"):
        load("net_of_mine:build")


def test_a_model_is_no_factory(tmp_path):
    (tmp_path / "net.py").write_text(
        "class Net:\n    def forward(self, x): pass\n    def __call__(self, x): pass\nnet = Net()\n"
    )
    with pytest.raises(CaptureError, match=r"net.py:net is a model itself \(Net\)"):
        load(f"{tmp_path}/net.py:net")


def test_a_factory_that_needs_arguments_is_told(tmp_path):
    (tmp_path / "net.py").write_text("def build(width, depth=3): pass\nclass Net:\n    def __init__(self, n): pass\n")
    with pytest.raises(CaptureError, match=r"needs arguments \(width\)"):
        load(f"{tmp_path}/net.py:build")
    with pytest.raises(CaptureError, match=r"needs arguments \(n\)"):
        load(f"{tmp_path}/net.py:Net")


def test_an_error_of_the_users_file_passes_through(tmp_path):
    (tmp_path / "net.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        load(f"{tmp_path}/net.py:build")
    (tmp_path / "inner.py").write_text("import json_of_nobody\n")
    with pytest.raises(ModuleNotFoundError, match="json_of_nobody"):
        load(f"{tmp_path}/inner.py:build")
