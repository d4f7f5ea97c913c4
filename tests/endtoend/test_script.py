"""A script under `aligner capture` prints, exits and fails as it does under python."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="the script door is tried on torch; MindSpore's watch_roots has its contract tests")

NET = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
print("result", net(torch.ones(1, 4)).sum().item())
"""

ENDINGS = {
    "ends": "",
    "exit-0": "import sys; sys.exit(0)",
    "exit-7": "import sys; sys.exit(7)",
    "exit-none": "import sys; sys.exit()",
    "exit-text": "import sys; sys.exit('what went wrong')",
    "raises": "def inner():\n    raise ValueError('mine')\ninner()",
    "raises-in-forward": textwrap.dedent(
        """
        class Bad(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 3)
            def forward(self, x):
                return self.fc(x)
        Bad()(torch.ones(1, 5))
        """
    ),
    "raises-from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error",
    "system-facts": "import sys; print(__name__, __file__, sys.argv, sys.path[0], sys.modules['__main__'].net is net)",
    "own-hook": "import sys; sys.excepthook = lambda *a: print('hooked', a[0].__name__); 1 / 0",
    "ascii": "import sys; print(sys.stdout.errors, sys.stdout.encoding)",
    "pickles": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__)",
}


def run(folder, *command):
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120)


def tail(stderr):
    """What the script itself said: aligner's own lines are told apart by where they begin."""
    ours = ("aligner: ", "ref.h5: ", "next: ", "caution: ", "step ", "Captured ")
    return [line for line in stderr.splitlines() if not line.startswith(ours)]


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_same_as_python(tmp_path, ending):
    (tmp_path / "train.py").write_text(NET + ENDINGS[ending], encoding="utf-8")
    plain = run(tmp_path, "train.py", "--epochs", "1", "-o", "x")
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py", "--epochs", "1", "-o", "x")
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode
    assert tail(ours.stderr) == tail(plain.stderr)
    shown = run(tmp_path, "-m", "aligner", "show", "ref.h5")
    assert shown.returncode == 0, shown.stderr


def test_module_door_is_python_dash_m(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(NET + ENDINGS["system-facts"].replace("__file__", "__spec__.name"))
    plain = run(tmp_path, "-m", "shop.train", "a", "b")
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "-m", "shop.train", "a", "b")
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)


def test_packages_of_the_users_own_win(tmp_path):
    for name in ("hooks", "utils", "tests", "samples"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(f"WHOSE = 'mine: {name}'\n")
    (tmp_path / "train.py").write_text(
        "import hooks, utils, tests, samples\nprint(hooks.WHOSE, utils.WHOSE, tests.WHOSE, samples.WHOSE)\n" + NET
    )
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.stdout.startswith("mine: hooks mine: utils mine: tests mine: samples")
    assert ours.returncode == 0


def test_the_script_comes_before_numpy(tmp_path):
    """A script may set environment variables before numpy or a framework is imported."""
    (tmp_path / "train.py").write_text("import sys\nprint('numpy' in sys.modules, 'h5py' in sys.modules)\n" + NET)
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.stdout.startswith("False False")


@pytest.mark.parametrize("shadow", ["aligner.py", "aligner_hooks.py", "aligner/__init__.py"])
def test_a_file_with_our_name_beside_the_script_is_told_of(tmp_path, shadow):
    (tmp_path / "train.py").write_text(NET)
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    (tmp_path / "elsewhere").mkdir()
    ours = run(tmp_path / "elsewhere", "-m", "aligner", "capture", "-o", "ref.h5", str(tmp_path / "train.py"))
    assert ours.returncode == 2
    assert shadow in ours.stderr
    assert "Rename" in ours.stderr
    assert ours.stdout == ""


def test_several_models(tmp_path):
    (tmp_path / "gan.py").write_text(
        textwrap.dedent(
            """
            import torch
            class Generator(torch.nn.Linear): pass
            class Critic(torch.nn.Linear): pass
            g, c = Generator(2, 2), Critic(2, 2)
            for _ in range(3):
                c(g(torch.ones(1, 2)))
            """
        )
    )
    first = run(tmp_path, "-m", "aligner", "capture", "-o", "a.h5", "gan.py")
    assert "Generator" in first.stderr
    assert "these ran too and were left out: Critic" in first.stderr
    assert "--steps" in first.stderr
    chosen = run(tmp_path, "-m", "aligner", "capture", "-o", "b.h5", "--model", "Critic", "--steps", "2", "gan.py")
    assert "2 step(s)" in chosen.stderr
    wrong = run(tmp_path, "-m", "aligner", "capture", "-o", "c.h5", "--model", "Nix", "gan.py")
    assert wrong.returncode == 2
    assert "Generator, Critic" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("print('no net')", "No model ran"), ("import torch\nnet = torch.nn.Linear(2, 2)", "No model ran")],
)
def test_a_script_in_which_nothing_runs(tmp_path, text, wanted):
    (tmp_path / "train.py").write_text(text)
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.returncode == 2
    assert wanted in ours.stderr
    assert not (tmp_path / "ref.h5").exists()
