"""Devices of each framework. None but the processor was ever there: what is said of the others stands in for them."""

from __future__ import annotations

import sys
import types

import pytest

from aligner.errors import AdapterError

torch = pytest.importorskip("torch")


class TestTorch:
    @pytest.fixture
    def devices(self):
        from aligner_hooks.torch_ import devices

        return devices

    @pytest.mark.parametrize("name", ["cpu", "CPU", "cpu:0"])
    def test_the_processor_by_any_name(self, devices, name):
        assert devices.device(name)(torch.ones(2)).device.type == "cpu"

    @pytest.mark.parametrize("name", ["npu", "Ascend:3", "ascend"])
    def test_an_npu_without_torch_npu_says_so(self, devices, name):
        with pytest.raises(AdapterError, match="torch_npu") as error:
            devices.device(name)
        assert error.value.message == "torch-device-absent"

    def test_no_device_at_all_lists_the_names(self, devices):
        with pytest.raises(AdapterError, match="cpu, gpu, cuda, ascend, npu"):
            devices.device("cuda:x")

    def test_a_number_that_is_not_there_is_told(self, devices, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(AdapterError, match=r"device_count\(\) is 1"):
            devices.device("cuda:1")
        assert devices.absence(devices.Device("gpu", 0)) == ""

    @pytest.mark.parametrize(("conv", "word"), [(True, "tf32"), (False, "float32")])
    def test_what_cuda_shortens_is_in_the_header(self, devices, monkeypatch, conv, word):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "a GPU")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", conv)
        first = types.SimpleNamespace(device=torch.device("cuda:1"))
        facts = devices.facts(first)
        assert (facts["device"], facts["device_index"], facts["device_name"]) == ("cuda", 1, "a GPU")
        assert (facts["float32_matmul"], facts["float32_conv"]) == ("float32", word)

    def test_what_torch_npu_shortens_is_in_the_header(self, devices, monkeypatch):
        conv, matmul = types.SimpleNamespace(), types.SimpleNamespace(allow_hf32=True)
        npu = types.SimpleNamespace(conv=conv, matmul=matmul, get_device_name=lambda place: "Ascend910B")
        monkeypatch.setattr(torch, "npu", npu, raising=False)
        facts = devices.facts(types.SimpleNamespace(device=types.SimpleNamespace(type="npu", index=0)))
        assert (facts["float32_matmul"], facts["float32_conv"]) == ("hf32", "hf32")

    def test_a_torch_npu_for_another_torch_is_wrong(self, devices, monkeypatch):
        monkeypatch.setattr(devices, "_installed", lambda name: "1.11.0")
        found = {finding.message: finding.good for finding in devices.doctor()}
        assert found["torch-npu-mismatch"] is False
        assert found["torch-npu-unusable"] is False


class TestMindSpore:
    @pytest.fixture
    def devices(self):
        pytest.importorskip("mindspore")
        from aligner_hooks.mindspore_ import devices

        return devices

    @pytest.mark.parametrize("name", ["cpu", "CPU", "cpu:0"])
    def test_the_processor_by_any_name(self, devices, name):
        assert devices.device(name)(3) == 3
        assert devices.facts()["device"] == "CPU"

    @pytest.mark.parametrize("name", ["npu", "Ascend:3", "gpu"])
    def test_what_is_not_here_is_told_with_what_is(self, devices, name):
        with pytest.raises(AdapterError, match="usable here: cpu") as error:
            devices.device(name)
        assert error.value.message == "mindspore-device"

    def test_an_old_mindspore_is_told_by_its_context(self, devices, monkeypatch):
        told = {}
        monkeypatch.delattr(devices.mindspore, "set_device", raising=False)
        monkeypatch.setattr(devices.mindspore, "set_context", lambda **facts: told.update(facts))
        devices.device("ascend:3")
        assert told == {"device_target": "Ascend", "device_id": 3}

    @pytest.mark.parametrize(("said", "conv"), [("", "hf32"), ("1", "hf32"), ("0", "float32")])
    def test_what_ascend_shortens_is_in_the_header(self, devices, monkeypatch, said, conv):
        class Keeper:
            @staticmethod
            def get_instance():
                names = ("matmul_allow_hf32", "precision_mode", "op_precision_mode")
                return types.SimpleNamespace(conv_allow_hf32=lambda: said, **{name: lambda: "" for name in names})

        core = sys.modules["mindspore._c_expression"]
        monkeypatch.setattr(core, "AscendOpPrecisionConf", Keeper, raising=False)
        monkeypatch.setattr(devices, "target", lambda: "Ascend")
        facts = devices.facts()
        assert (facts["float32_matmul"], facts["float32_conv"]) == ("float32", conv)
        assert facts["precision_mode"] is None
