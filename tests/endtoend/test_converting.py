"""A checkpoint of torch's, converted, is loaded by MindSpore and makes the same outputs; and the way back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aligner.cli import main

torch = pytest.importorskip("torch", reason="the samples' references are PyTorch nets")
mindspore = pytest.importorskip("mindspore", reason="the samples' ports are MindSpore nets")

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = "conv_same conv_valid lenet_bn lstm renamed resnet18 transformer two_inputs unet".split()  # noqa: SIM905
NEAR = 1e-5


def build(sample: str, file: str) -> Any:
    path = ROOT / "samples" / sample / file
    space: dict[str, Any] = {"__name__": f"{sample}_{path.stem}", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), space)
    built = space["build"]()
    return built if isinstance(built, tuple) else (built, ())


def outputs(net: Any, inputs: Any, tensor: Any) -> list[np.ndarray]:
    words = inputs if isinstance(inputs, dict) else {}
    rows = () if words else inputs if isinstance(inputs, tuple) else (inputs,)
    made = net(*(as_tensors(row, tensor) for row in rows), **as_tensors(words, tensor))
    return [each.asnumpy() if hasattr(each, "asnumpy") else each.detach().numpy() for each in flat(made)]


def as_tensors(value: Any, tensor: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_tensors(each, tensor) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(as_tensors(each, tensor) for each in value)
    value = value.numpy() if isinstance(value, torch.Tensor) else value
    return tensor(value) if isinstance(value, np.ndarray) else value


def flat(value: Any) -> list[Any]:
    value = list(value.values()) if isinstance(value, dict) else value
    return [one for each in value for one in flat(each)] if isinstance(value, (tuple, list)) else [value]


def trained(sample: str) -> tuple[Any, Any]:
    """The reference with weights that are no initial ones, in eval mode."""
    net, inputs = build(sample, "reference.py")
    torch.manual_seed(7)
    with torch.no_grad():
        for tensor in (*net.parameters(), *(b for name, b in net.named_buffers() if "running" in name)):
            tensor.mul_(1.0 + 0.1 * torch.rand_like(tensor)).add_(0.01 * torch.rand_like(tensor))
    return net.eval(), inputs


@pytest.mark.parametrize("sample", SAMPLES)
def test_there_and_back(tmp_path, sample, capfd):
    net, inputs = trained(sample)
    pth, ckpt, back = (str(tmp_path / name) for name in ("a.pth", "a.ckpt", "b.pth"))
    torch.save(net.state_dict(), pth)
    assert main(["convert", pth, "-o", ckpt, "--net", f"{ROOT}/samples/{sample}/port.py:build", "-q"]) == 0
    port = build(sample, "port.py")[0]
    lacking, _ = mindspore.load_param_into_net(port, mindspore.load_checkpoint(ckpt), strict_load=True)
    assert lacking == []
    with torch.no_grad():
        wanted = outputs(net, inputs, torch.from_numpy)
    for one, other in zip(wanted, outputs(port.set_train(False), inputs, mindspore.Tensor)):
        assert np.linalg.norm(one - other) <= NEAR * np.linalg.norm(one)
    assert main(["compare", pth, ckpt, "-q"]) == 0
    mindspore.save_checkpoint(port, str(tmp_path / "saved.ckpt"))
    assert main(["compare", pth, str(tmp_path / "saved.ckpt"), "-q"]) == 0
    target = f"{ROOT}/samples/{sample}/reference.py:build"
    assert main(["convert", str(tmp_path / "saved.ckpt"), "-o", back, "--net", target, "-q"]) == 0
    other = build(sample, "reference.py")[0].eval()
    other.load_state_dict(torch.load(back, weights_only=True))
    with torch.no_grad():
        assert all(np.array_equal(a, b) for a, b in zip(wanted, outputs(other, inputs, torch.from_numpy)))


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample != "renamed"])
def test_the_rules_of_names_alone_do_it_where_names_are_alike(tmp_path, sample):
    net, _ = trained(sample)
    pth = str(tmp_path / "a.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, pth)
    for name, options in (("a.ckpt", []), ("a.safetensors", ["--names", "mindspore"])):
        assert main(["convert", pth, "-o", str(tmp_path / name), *options, "-q"]) == 0
        port = build(sample, "port.py")[0]
        loaded = mindspore.load_checkpoint(str(tmp_path / name), format=name.split(".")[1])
        assert mindspore.load_param_into_net(port, loaded)[0] == []


@pytest.mark.parametrize(("name", "language"), [("weights.md", "en"), ("weights.zh-CN.md", "zh")])
def test_the_guide_shows_what_is_printed(tmp_path, monkeypatch, capsys, name, language):
    """Its commands are run on the transformer of the samples, with one matrix transposed."""
    monkeypatch.chdir(tmp_path)
    net, _ = build("transformer", "reference.py")
    torch.save({"epoch": 3, "state_dict": net.state_dict(), "optimizer": {}}, "model.pth")
    Path("net_mindspore.py").write_text((ROOT / "samples/transformer/port.py").read_text())
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    compared, converted = re.findall(r"```console\n\$ (.*?)\n(.*?)```", text, re.DOTALL)
    for command, shown in (converted, compared):
        assert main([*command.split()[1:], "--lang", language, "-q"]) in (0, 1)
        wanted = [re.sub(r"\d\.\de.\d\d", "figure", line) for line in shown.splitlines()]
        found = [re.sub(r"\d\.\de.\d\d", "figure", line) for line in capsys.readouterr().out.splitlines()]
        assert wanted == found
        if command == converted[0]:
            transpose("model.ckpt", "wrong.ckpt", "blocks.0.attention.query.weight")


def transpose(path: str, other: str, name: str) -> None:
    table = mindspore.load_checkpoint(path)
    table[name] = mindspore.Parameter(mindspore.Tensor(table[name].asnumpy().T.copy()))
    mindspore.save_checkpoint([{"name": each, "data": value} for each, value in table.items()], other)


def test_what_did_not_map_is_listed_and_changes_the_exit_code(tmp_path, capsys):
    net, _ = trained("lenet_bn")
    table = dict(net.state_dict())
    name, weight = next((k, v) for k, v in table.items() if v.dim() == 2)
    table.update({name: weight[:, :3].contiguous(), "teacher.weight": torch.ones(7, 7)})
    del table["bn1.running_var"]
    torch.save(table, tmp_path / "a.pth")
    arguments = ["convert", str(tmp_path / "a.pth"), "-o", str(tmp_path / "a.ckpt"), "--lang", "en", "-q"]
    assert main([*arguments, "--net", f"{ROOT}/samples/lenet_bn/port.py:build"]) == 1
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert text.startswith("INCOMPLETE")
    assert "Nothing stands for these parameters of the net (1) bn1.moving_variance" in text
    assert "The net has no place for (1) teacher.weight [7, 7]" in text
    assert f"Of another shape than the net wants (1) {name}" in text
    assert main(arguments) == 2, "it is there already"
    assert "--force" in capsys.readouterr().err


def test_a_dump_is_a_checkpoint_too(tmp_path):
    dump, ckpt = str(tmp_path / "ref.h5"), str(tmp_path / "a.ckpt")
    factory = f"{ROOT}/samples/lenet_bn/reference.py:build"
    assert main(["capture", factory, "-o", dump, "-q"]) == 0
    assert main(["convert", dump, "-o", ckpt, "-q"]) == 0
    assert main(["compare", dump, ckpt, "-q"]) == 0
    port = build("lenet_bn", "port.py")[0]
    assert mindspore.load_param_into_net(port, mindspore.load_checkpoint(ckpt)) == ([], [])


def test_neither_framework_is_imported(tmp_path):
    net, _ = trained("resnet18")
    torch.save(net.state_dict(), tmp_path / "a.pth")
    script = (
        "import sys; from aligner.cli import main;"
        "codes = [main(['convert', 'a.pth', '-o', 'a.ckpt', '-q']), main(['convert', 'a.ckpt', '-o', 'b.pth', '-q']),"
        "main(['compare', 'a.pth', 'a.ckpt', '-q']), main(['compare', 'b.pth', 'a.pth', '-q'])];"
        "sys.exit(any(codes) or bool({'torch', 'mindspore', 'google.protobuf', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_maps_what_we_write(tmp_path):
    net, _ = trained("resnet18")
    torch.save(net.state_dict(), tmp_path / "a.pth")
    assert main(["convert", str(tmp_path / "a.pth"), "-o", str(tmp_path / "b.pth"), "-q"]) == 0
    mapped = torch.load(tmp_path / "b.pth", weights_only=True, mmap=True)
    assert all(torch.equal(mapped[name], value) for name, value in net.state_dict().items())
    assert all(value.data_ptr() % 64 == 0 for value in mapped.values())
    safetensors = pytest.importorskip("safetensors.torch")
    assert main(["convert", str(tmp_path / "a.pth"), "-o", str(tmp_path / "b.safetensors"), "-q"]) == 0
    loaded = safetensors.load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in net.state_dict().items())
