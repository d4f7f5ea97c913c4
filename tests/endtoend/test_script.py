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


CAUGHT = """
import logging, threading, traceback
class Bad(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
    def forward(self, x):
        print(len(traceback.extract_stack()))
        return self.fc(x)
def fail():
    Bad()(torch.ones(1, 5))
errors = []
for show in (traceback.print_exc, lambda: logging.exception("log"), lambda: print(traceback.format_exc())):
    try:
        fail()
    except RuntimeError as error:
        show()
        errors.append(error)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
try:
    raise ExceptionGroup("many", errors)
except NameError:
    raise errors[0]  # Python 3.9
"""

FORKS = """
import os, sys
if os.fork() == 0:
    print("child", flush=True)
else:
    print("code", os.waitstatus_to_exitcode(os.wait()[1]))
"""

PLACES = {
    "caught": CAUGHT,
    "forks": FORKS,
    "main-module": "print(sorted(k for k in globals() if k[0] == '_'), __builtins__.__name__, __cached__)",
    "at-exit": "import atexit, sys\natexit.register(lambda: print(sys.argv, sys.modules['__main__'].net is net))",
    "hook-leaves": "import sys\nsys.excepthook = lambda *a: sys.exit(17)\n1 / 0",
    "hook-fails": "import sys\ndef hook(*a):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0",
    "thread-goes-on": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.3), print('late', net(torch.ones(1, 4)).shape))).start()",
    "executor": "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
    "print(pool.submit(lambda: 3).result())",
    "runpy": "import runpy\nopen('o.py', 'w').write('1 / 0')\nrunpy.run_path('o.py')",
    "elsewhere": "import os\nos.mkdir('sub')\nos.chdir('sub')",
}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_what_a_script_may_look_at(tmp_path, place):
    (tmp_path / "train.py").write_text(NET + PLACES[place], encoding="utf-8")
    plain = run(tmp_path, "train.py")
    for made in ("sub", "o.py"):
        if (tmp_path / made).is_dir():
            (tmp_path / made).rmdir()
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode
    assert tail(ours.stderr) == tail(plain.stderr)
    assert run(tmp_path, "-m", "aligner", "show", "ref.h5").returncode == 0


def test_a_net_in_a_thread_that_outlives_the_script(tmp_path):
    text = NET.replace('print("result"', 'work = lambda: print("result"')
    (tmp_path / "train.py").write_text(text + "import threading\nthreading.Timer(0.2, work).start()\n")
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.startswith("result")
    assert (tmp_path / "ref.h5").exists()


@pytest.mark.parametrize("command", [["-m", "nix"], ["-m", "shop.nix"], ["-m", "shop"], ["app"]])
def test_modules_and_folders(tmp_path, command):
    for folder in ("shop", "app"):
        (tmp_path / folder).mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "app" / "__main__.py").write_text(
        "import sys\nprint(__spec__.name, __package__, sys.argv, sys.path[0])"
    )
    plain = run(tmp_path, *command)
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", *command)
    assert ours.stdout == plain.stdout
    if plain.returncode:  # the other one runs no model
        assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&-", ">/dev/full", "| true"])
def test_streams_that_are_closed_or_full(tmp_path, shell):
    (tmp_path / "train.py").write_text(NET + "import sys\nprint(sys.stdin)\n")
    codes = {}
    for name, capture in (("plain", ""), ("ours", "-m aligner capture -o ref.h5")):
        line = f"{sys.executable} {capture} train.py {shell}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        codes[name] = done.returncode, done.stdout, tail(done.stderr)
    assert codes["ours"] == codes["plain"]
    assert run(tmp_path, "-m", "aligner", "show", "ref.h5").returncode == 0


def test_what_raised_before_does_not_count_as_unobserved(tmp_path):
    text = (
        NET
        + "for _ in range(2):\n    try: net(torch.ones(1, 5))\n    except RuntimeError: pass\nnet(torch.ones(1, 4))\n"
    )
    first = text.replace('print("result", net(torch.ones(1, 4)).sum().item())\n', "")
    (tmp_path / "train.py").write_text(first)
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert ours.returncode == 0
    assert "unobserved" not in ours.stderr


def test_the_command_is_shown_as_it_was_given(tmp_path):
    """While the script runs sys.argv is the script's; the dump kept that one."""
    (tmp_path / "train.py").write_text(NET)
    given = ["--lang", "en", "-o", "ref.h5", "train.py", "--epochs", "3", "two words"]
    assert run(tmp_path, "-m", "aligner", "capture", *given).returncode == 0
    shown = " ".join(run(tmp_path, "-m", "aligner", "show", "ref.h5").stdout.split())  # as wide as the terminal is
    assert "aligner capture --lang en -o ref.h5 train.py --epochs" in shown
    assert "3 'two words'" in shown
    assert run(tmp_path, "-m", "aligner", "capture", "-o", "m.h5", "-m", "train", "-x").returncode == 0
    shown = " ".join(run(tmp_path, "-m", "aligner", "show", "m.h5").stdout.split())
    assert "aligner capture -o m.h5 -m train -x" in shown


BARE = """
import torch
class Plain(torch.nn.Module):
    def forward(self, x):
        return x * 2
Plain()(torch.ones(2))
torch.nn.MSELoss()(torch.ones(2), torch.ones(2))
"""


def test_a_net_without_parameters_that_ran_is_named(tmp_path):
    """It is passed by as a loss is; that no model ran is not true."""
    (tmp_path / "train.py").write_text(BARE)
    for language, said in (("en", "Only Plain, MSELoss ran in train.py"), ("zh", "train.py 中只运行了 Plain, MSELoss")):
        done = run(tmp_path, "-m", "aligner", "capture", "--lang", language, "-o", "ref.h5", "train.py")
        assert done.returncode == 2
        assert said in done.stderr
        assert "--model Plain" in done.stderr
    wrong = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "--model", "Nix", "train.py")
    assert "these did: Plain, MSELoss" in wrong.stderr
    assert run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "--model", "Plain", "train.py").returncode == 0


def test_a_capture_that_failed_is_told_when_the_script_failed_too(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys\nos.rmdir('out')\n" + NET + "sys.exit(5)\n")
    (tmp_path / "out").mkdir()
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "out/ref.h5", "train.py")
    assert ours.returncode == 5
    assert "there is no folder" in ours.stderr


@pytest.mark.parametrize("second", ["mindnlp 0.5.1", "mindnlp 0.4.1", ""])
def test_two_packages_in_one_folder_are_told_under_the_error_that_comes_of_it(tmp_path, second):
    """Both bring a package `mindtorch`; what is left of it misses a name that has nothing to do with that."""
    for name, _, version in (found.partition(" ") for found in ("mindtorch 0.4.0", second) if found):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (tmp_path / "mindtorch").mkdir()
    (tmp_path / "mindtorch" / "__init__.py").write_text("from .legacy import ops\n")
    (tmp_path / "mindtorch" / "legacy.py").write_text("ops = GroupTopk()\n")
    (tmp_path / "train.py").write_text("import mindtorch\n")
    (tmp_path / "own.py").write_text("raise NameError('GroupTopk')\n")
    for script, told in (("train.py", second == "mindnlp 0.5.1"), ("own.py", False)):
        done = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", script)
        assert done.returncode == 1
        assert ("mindtorch 0.4.0 and mindnlp 0.5.1 are installed in one environment" in done.stderr) is told
