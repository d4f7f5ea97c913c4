"""A training that was stopped and resumed, against one that was not: what was not saved or not loaded is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import aligner as package

pytest.importorskip("torch", reason="the trainings are torch's")

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import argparse, numpy as np, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--stop", type=int, default=10)
parser.add_argument("--lose", default="")
options = parser.parse_args()
rng = np.random.default_rng(0)
images, labels = (torch.from_numpy(one) for one in (rng.random((60, 3, 6, 6), np.float32), rng.integers(0, 4, 60)))
torch.manual_seed(1)
layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(DROPOUT), nn.Linear(96, 4)
net = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
batch, rows = 0, torch.arange(60)
if options.resume:
    kept = torch.load(options.resume)
    if options.lose == "buffers":
        kept["net"] = {name: value for name, value in kept["net"].items() if "running" not in name}
    if options.lose == "counter":
        for one in kept["optimizer"]["state"].values():
            one["step"] = torch.tensor(0.0)
    if options.lose != "net":
        net.load_state_dict(kept["net"], strict=False)
    for name, one in (("optimizer", optimizer), ("schedule", schedule), ("scaler", scaler)):
        if options.lose != name:
            one.load_state_dict(kept[name])
    if options.lose != "data":
        batch = kept["batch"]
    if options.lose == "order":
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    if options.lose != "random":
        torch.set_rng_state(kept["random"])
steps = 0
size = 6 // EACH
while batch < 10 * EACH and steps < 5 + 5 * (not options.resume):
    at = rows[batch * size:(batch + 1) * size]
    scaler.scale(nn.functional.cross_entropy(net(images[at]), labels[at]) / EACH).backward()
    batch += 1
    if batch % EACH == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        steps += 1
    if batch == options.stop:
        break
if not options.resume:
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                "scaler": scaler.state_dict(), "random": torch.get_rng_state(), "batch": batch}, f"{options.stop}.pth")
"""


def script(folder, dropout=0.0, each=1):
    (folder / "train.py").write_text(SCRIPT.replace("DROPOUT", str(dropout)).replace("EACH", str(each)))


def captured(warm, path, *arguments, steps=5):
    done = warm("capture", "--gradients", "--force", "--steps", steps, "-o", path, "train.py", *arguments)
    assert done.returncode == 0, done.stderr


def whole(warm, stops=(5,), each=1):
    """The whole run, and checkpoints of one that was stopped."""
    captured(warm, "whole.h5", "--stop", 10 * each, steps=10)
    for stop in stops:
        captured(warm, "stopped.h5", "--stop", stop, steps=10)


def compared(folder, port="resumed.h5", **more):
    return package.compare(folder / "whole.h5", folder / port, **more)


def told(comparison):
    return [(origin.where, origin.step, origin.causes[0].id) for origin in comparison.origins]


@pytest.fixture(scope="module")
def runs(torch_at_hand, tmp_path_factory):
    """A folder with a whole run and a checkpoint of its fifth step; what goes on from there is captured in it."""
    folder = tmp_path_factory.mktemp("resumed")
    script(folder)
    whole(lambda *arguments: torch_at_hand.run(folder, *map(str, arguments)), (5, 2))
    return folder


LOST = {
    "": [],
    "net": [("state", 5, "resume-parameters")],
    "buffers": [("state", 5, "resume-buffers")],
    "optimizer": [("state", 5, "resume-optimizer-state")],
    "counter": [("state", 5, "resume-step-counter")],
    "schedule": [("schedule", 6, "resume-learning-rate")],
    "scaler": [("state", 5, "resume-loss-scale")],
    "data": [("data", 5, "resume-data-begins")],
    "order": [("data", 5, "resume-data-order")],
}


@pytest.mark.parametrize("lost", LOST)
def test_what_was_lost_is_named_and_no_layer_blamed(warm, runs, lost):
    captured(lambda *a: warm(*a, cwd=runs), "resumed.h5", "--resume", "5.pth", "--lose", lost)
    found = compared(runs)
    assert told(found) == LOST[lost]
    assert found.outcome == ("diverged" if lost else "aligned")
    assert found.exit_code == bool(lost)
    assert (found.resumed.step, found.resumed.steps) == (5, 5)
    assert found.resumed.by == ("state" if lost == "net" else "parameters")
    assert [row.step for row in found.steps] == [5, 6, 7, 8, 9]
    assert not [verdict for verdict in found.verdicts if verdict.fails and verdict.origin != 0]
    assert not found.suspects


def test_what_is_lost_together_is_told_one_by_one(warm, runs):
    text = (runs / "train.py").read_text()
    (runs / "other.py").write_text(
        text.replace("options.lose != name", 'name == "scaler"').replace('if options.lose != "data"', "if False")
    )
    done = warm(
        "capture", "--gradients", "--force", "--steps", 5, "-o", "three.h5", "other.py", "--resume", "5.pth", cwd=runs
    )
    assert done.returncode == 0, done.stderr
    wanted = [("data", 5, "resume-data-begins"), ("state", 5, "resume-optimizer-state")]
    assert told(compared(runs, "three.h5")) == [*wanted, ("schedule", 5, "resume-learning-rate")]


def test_a_growth_counter_shows_later(warm, runs):
    captured(lambda *a: warm(*a, cwd=runs), "resumed.h5", "--resume", "2.pth", "--lose", "scaler")
    assert told(compared(runs)) == [("state", 3, "resume-scale-growth")]


def test_gradients_of_an_update_that_had_begun(warm, tmp_path):
    script(tmp_path, each=3)
    whole(warm, (6, 7), 3)
    captured(warm, "resumed.h5", "--resume", "6.pth")
    assert compared(tmp_path).aligned
    captured(warm, "resumed.h5", "--resume", "7.pth")
    assert told(compared(tmp_path))[0] == ("state", 2, "resume-accumulated-gradients")


def test_the_random_state(warm, tmp_path):
    script(tmp_path, dropout=0.3)
    whole(warm)
    captured(warm, "resumed.h5", "--resume", "5.pth")
    assert compared(tmp_path).aligned
    captured(warm, "resumed.h5", "--resume", "5.pth", "--lose", "random")
    assert told(compared(tmp_path)) == [("state", 5, "resume-random-state")]


def test_words_numbers_and_a_step_that_is_given(warm, runs):
    captured(lambda *a: warm(*a, cwd=runs), "resumed.h5", "--resume", "5.pth", "--lose", "optimizer")
    done = warm("compare", "whole.h5", "resumed.h5", cwd=runs)
    assert done.returncode == 1
    for words in (
        "the optimizer's state was not loaded",
        "first one resumed",
        "`optimizer.load_state_dict(...)`",
        "nothing of them",
    ):
        assert words in " ".join(done.stdout.split())
    shown = (ROOT / "docs" / "training.md").read_text()
    block = shown[shown.index("DIVERGED  the optimizer's state") :].partition("```")[0]
    assert all(" ".join(part.split()) in " ".join(done.stdout.split()) for part in block.split("\n\n"))
    chinese = warm("compare", "whole.h5", "resumed.h5", "--lang", "zh", cwd=runs).stdout
    assert "优化器状态未加载" in "".join(chinese.split())
    found = json.loads(warm("compare", "whole.h5", "resumed.h5", "--json", "--from-step", 5, cwd=runs).stdout)
    assert found["resumed"] == {"step": 5, "by": "option", "steps": 5, "left": [0, 0], "others": []}
    assert [row["step"] for row in found["steps"]] == [5, 6, 7, 8, 9]
    assert found["steps"][0]["first"]["origin"] == 0
    assert {pair["step"] for pair in found["pairs"]} == {5, 6, 7, 8, 9}
    other = warm("compare", "whole.h5", "resumed.h5", "--json", "--from-step", 4, cwd=runs)
    assert json.loads(other.stdout)["origins"][0]["causes"][0]["id"] == "resume-parameters"
    refused = warm("compare", "whole.h5", "resumed.h5", "--from-step", 12, cwd=runs)
    assert (refused.returncode, "its steps are 0 to 9" in refused.stderr) == (2, True)


def test_records_are_where_both_files_have_them(warm, runs):
    captured(lambda *a: warm(*a, cwd=runs), "resumed.h5", "--resume", "5.pth", "--lose", "net")
    found = compared(runs)
    with package.open(runs / "whole.h5") as one, package.open(runs / "resumed.h5") as other:
        for verdict in found.pairs:
            assert one.find(verdict.reference.key).shape == verdict.reference.shape
            assert other.find(verdict.port.key).shape == verdict.port.shape
            assert verdict.key.step == verdict.port.key.step + 5
    assert found["0"] is not None


def test_runs_that_do_not_meet(warm, runs):
    call = lambda *a: warm(*a, cwd=runs)  # noqa: E731
    captured(call, "stopped.h5", "--stop", 5)
    assert compared(runs, "stopped.h5").resumed is None  # it begins as the whole run does
    done = call("compare", "stopped.h5", "whole.h5")
    assert done.returncode == 1
    captured(call, "resumed.h5", "--resume", "5.pth")
    with pytest.raises(package.AlignerError, match="ends with"):
        package.compare(runs / "stopped.h5", runs / "resumed.h5")
    text = (runs / "train.py").read_text()
    (runs / "train.py").write_text(text.replace("manual_seed(1)", "manual_seed(2)"))
    captured(call, "resumed.h5")
    (runs / "train.py").write_text(text)
    found = compared(runs)
    assert found.resumed is None
    assert found.warnings[0][0] == "resumed-nowhere"


def test_a_run_that_goes_on_for_longer_is_compared_as_far_as_both_go(warm, runs):
    call = lambda *a: warm(*a, cwd=runs)  # noqa: E731
    captured(call, "short.h5", "--stop", 10, steps=7)
    captured(call, "resumed.h5", "--resume", "5.pth")
    found = package.compare(runs / "short.h5", runs / "resumed.h5")
    assert (found.outcome, found.resumed.steps, found.resumed.left) == ("aligned", 2, (0, 3))
    assert [message for message, _ in found.warnings] == ["resumed-longer"]
