"""The shipped checks find what they are there to find: each of these adapters has one fault."""

from __future__ import annotations

import copy
import re

import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there

from aligner.adapter import Parameter  # noqa: E402 - as above
from aligner.record import LayerSpec, Note  # noqa: E402 - as above
from tests.adapters import test_torch  # noqa: E402 - as above


class Contract(test_torch.TestTorchContract):
    __test__ = False  # it is collected where it stands


class NoKeywords(TorchAdapter):
    def observe(self, layer, before, after):
        return super().observe(layer, lambda args, kwargs: before(args, {}), after)


class SeesReplacedInputs(TorchAdapter):
    """Looks at the inputs when the layer is through, as a forward hook alone would."""

    def observe(self, layer, before, after):
        def late(args, kwargs, output):
            before(args, kwargs)
            after(args, kwargs, output)

        return super().observe(layer, lambda *_: None, late)


class Changes(TorchAdapter):
    def observe(self, layer, before, after):
        def change(args, kwargs, output):
            after(args, kwargs, output)
            if isinstance(output, torch.Tensor):
                output.data.mul_(1 + 1e-7)

        return super().observe(layer, before, change)


class LeavesHooks(TorchAdapter):
    def observe(self, layer, before, after):
        super().observe(layer, before, after)
        return type("Handle", (), {"remove": lambda self: None})()


class TellsOfInnerRoots(TorchAdapter):
    def watch_roots(self, on_root):
        return nn.modules.module.register_module_forward_pre_hook(lambda module, args: on_root(module))


class ForgetsPlainLists(TorchAdapter):
    def layers(self, model):
        return iter(model.named_modules())

    def cautions(self, model):
        return iter(())


class CannotSayWhatItTells(TorchAdapter):
    def cautions(self, model):
        yield Note("", "torch-plain-parameter", {"nothing": "that the sentence needs"})


class WidensBfloat16(TorchAdapter):
    def to_numpy(self, tensor):
        return super().to_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)


class FrameworksOwnNames(TorchAdapter):
    def parameters(self, model):
        for parameter in super().parameters(model):
            role = {"running_mean": "moving_mean"}.get(parameter.role, parameter.role)
            yield Parameter(**{**vars(parameter), "role": role})


class LoadsAnyShape(TorchAdapter):
    def load(self, parameter, array, dtype):
        super().load(parameter, array.reshape(parameter.shape), dtype)


class OwnWords(TorchAdapter):
    def spec(self, layer):
        spec = super().spec(layer)
        return LayerSpec(spec.kind, {("epsilon" if k == "eps" else k): v for k, v in spec.attributes.items()})


class SilencesModulesOnly(TorchAdapter):
    def silence_dropout(self, model):
        drops = [module for module in model.modules() if isinstance(module, nn.Dropout)]
        for module in drops:
            module.eval()
        return type("Handle", (), {"remove": lambda self: [module.train() for module in drops]})()


class Forgetful:
    """A handle that removes nothing."""

    def remove(self):
        pass


class DropsNamedArguments(TorchAdapter):
    def intervene(self, layer, given, made):
        return super().intervene(layer, lambda args, kwargs: (given(args, kwargs)[0], kwargs), made)


class TakesNoneForNoAnswer(TorchAdapter):
    """As torch's own forward hooks do."""

    def intervene(self, layer, given, made):
        def answered(args, kwargs, output):
            answer = made(args, kwargs, output)
            return output if answer is None else answer

        return super().intervene(layer, given, answered)


class ShowsReplacedOutputs(TorchAdapter):
    """Observers see what is handed on, not what the layer made."""

    def observe(self, layer, before, after):
        def made(args, kwargs, output):
            after(args, kwargs, output)
            return output

        before_alone = super().observe(layer, before, lambda *_: None)
        late = super().intervene(layer, lambda args, kwargs: (args, kwargs), made)
        return type("Handle", (), {"remove": lambda self: (before_alone.remove(), late.remove())})()


class IntervenesForever(TorchAdapter):
    def intervene(self, layer, given, made):
        super().intervene(layer, given, made)
        return Forgetful()


class OverwritesMemory(TorchAdapter):
    def overwrite(self, tensor, other):
        if tensor.shape != other.shape or tensor.dtype != other.dtype or isinstance(tensor, nn.Parameter):
            raise ValueError("not this one")
        tensor.copy_(other)


class OverwritesAnything(TorchAdapter):
    def overwrite(self, tensor, other):
        tensor.data = other.detach().clone()


class SharesWithTheOther(TorchAdapter):
    def overwrite(self, tensor, other):
        tensor.data = other.data


class SharesWeights(TorchAdapter):
    def respecified(self, layer, changes, dtype=None):
        return copy.deepcopy(layer, {id(parameter): parameter for parameter in layer.parameters()})


class ClaimsChanges(TorchAdapter):
    def respecified(self, layer, changes, dtype=None):
        copied = super().respecified(layer, {}, dtype)
        vars(copied)["claimed"] = changes
        return copied

    def spec(self, layer):
        spec = super().spec(layer)
        return LayerSpec(spec.kind, {**spec.attributes, **vars(layer).get("claimed", {})})


class ChangesTheOriginal(TorchAdapter):
    def respecified(self, layer, changes, dtype=None):
        for name, value in changes.items():
            if name == "eps" and hasattr(layer, name):
                layer.eps = value
        return super().respecified(layer, changes, dtype)


class CopiesWhatCannotBe(TorchAdapter):
    def respecified(self, layer, changes, dtype=None):
        try:
            return super().respecified(layer, changes, dtype)
        except ValueError:
            return super().respecified(layer, {}, dtype)


class CopiesIgnoringTheType(TorchAdapter):
    def respecified(self, layer, changes, dtype=None):
        return super().respecified(layer, changes)


class CastsWhatTorchKnows(TorchAdapter):
    def cast(self, model, dtype):
        model.to(getattr(torch, dtype))


class SpellsTheClassAlone(TorchAdapter):
    def expression(self, layer):
        return re.sub(r", [a-z_]+=.*\)$", ")", super().expression(layer))


class TellsForever(TorchAdapter):
    def operations(self, told):
        super().operations(told)
        return Forgetful()


class TellsOfCallbacks(TorchAdapter):
    def operations(self, told):
        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                told(function.__name__)
                return function(*args, **(kwargs or {}))

        mode = Mode()
        mode.__enter__()
        return type("Handle", (), {"remove": lambda self: mode.__exit__(None, None, None)})()


class ForgetsTheState(TorchAdapter):
    def set_random_state(self, state):
        pass


FAULTS = [
    (NoKeywords, "test_nested_inputs_are_seen_with_none_and_plain_values"),
    (NoKeywords, "test_keyword_arguments_of_the_net_are_seen"),
    (SeesReplacedInputs, "test_a_value_is_what_it_was_at_that_moment"),
    (SeesReplacedInputs, "test_events_nest_and_a_shared_layer_has_one_for_each_call"),
    (LeavesHooks, "test_nothing_is_seen_after_removal_and_removing_twice_is_harmless"),
    (TellsOfInnerRoots, "test_each_outermost_run_is_told_of_once"),
    (TellsOfInnerRoots, "test_observers_installed_when_told_see_this_very_run"),
    (ForgetsPlainLists, "test_layers_in_plain_lists_are_told_of"),
    (ForgetsPlainLists, "test_layers_in_plain_lists_are_seen"),
    (FrameworksOwnNames, "test_names_are_canonical"),
    (LoadsAnyShape, "test_another_shape_is_refused"),
    (OwnWords, "test_spec_uses_the_words_of_the_vocabulary_only"),
    (DropsNamedArguments, "test_nested_and_named_arguments_can_be_replaced"),
    (DropsNamedArguments, "test_keyword_arguments_alone_can_be_replaced"),
    (ShowsReplacedOutputs, "test_an_observer_that_came_later_sees_the_same"),
    (IntervenesForever, "test_nothing_is_replaced_after_removal_and_removing_twice_is_harmless"),
    (OverwritesMemory, "test_the_tensor_of_which_it_is_a_view_stays_as_it_is"),
    (OverwritesMemory, "test_a_view_of_it_stays_as_it_is"),
    (OverwritesAnything, "test_parameters_are_refused"),
    (OverwritesAnything, "test_other_shapes_and_dtypes_are_refused"),
    (SharesWithTheOther, "test_the_other_tensor_stays_its_own"),
    (ChangesTheOriginal, "test_settings_change_one_at_a_time"),
    (CopiesWhatCannotBe, "test_what_cannot_be_is_refused_with_a_reason"),
    (CopiesWhatCannotBe, "test_settings_change_one_at_a_time"),
    (SpellsTheClassAlone, "test_what_is_spelled_builds_a_layer_with_the_same_settings"),
    (SpellsTheClassAlone, "test_changed_settings_are_spelled"),
    (TellsForever, "test_nothing_is_told_after_removal"),
    (TellsOfCallbacks, "test_what_callbacks_do_is_not_told"),
    (ForgetsTheState, "test_random_state_can_be_gone_back_to"),
]
FAULTS_WITH_ARGUMENTS = [
    (Changes, "test_outputs_are_bit_identical_with_and_without", ("norm", False)),
    (Changes, "test_outputs_are_bit_identical_with_and_without", ("norm", True)),
    (Changes, "test_gradients_are_bit_identical_with_and_without", ("norm",)),
    (ForgetsPlainLists, "test_paths_are_those_the_net_gives_its_layers", ("plain",)),
    (CannotSayWhatItTells, "test_cautions_are_sentences_in_both_languages", ("norm",)),
    (WidensBfloat16, "test_bits_come_back", ("bfloat16", (6, 10))),
    (SilencesModulesOnly, "test_dropout_is_silenced_in_train_mode_and_comes_back", ("dropout",)),
    (SilencesModulesOnly, "test_dropout_is_silenced_in_train_mode_and_comes_back", ("recurrent",)),
    (TakesNoneForNoAnswer, "test_any_structure_can_be_handed_on", ("none",)),
    (SharesWeights, "test_copy_and_original_share_no_values", ("norm",)),
    (ClaimsChanges, "test_the_copy_computes_with_the_change", ("LayerNorm",)),
    (ClaimsChanges, "test_the_copy_computes_with_the_change", ("Conv1d",)),
    (CopiesIgnoringTheType, "test_a_copy_computes_in_the_type_it_is_asked_for", ("float64",)),
    (CastsWhatTorchKnows, "test_there_and_back_is_exact", ("plain",)),
]
ALL = [(fault, check, ()) for fault, check in FAULTS] + FAULTS_WITH_ARGUMENTS


@pytest.fixture(autouse=True)
def clean_torch():
    """Some of the faults leave things behind: that is what they are for."""
    from aligner_hooks.torch_.calls import _TOLD
    from aligner_hooks.torch_.operations import _EARS

    yield
    for ears in list(_TOLD.ears.values()):
        for listener in (*ears.interventions, *ears.observers):
            listener.remove()
    while torch.overrides._get_current_function_mode_stack():
        torch.overrides._pop_mode()
    _EARS.listeners, _EARS.mode = (), None


@pytest.mark.parametrize(
    ("fault", "check", "arguments"), ALL, ids=[f"{fault.__name__}-{check[5:40]}" for fault, check, _ in ALL]
)
def test_a_faulty_adapter_is_found(fault, check, arguments):
    contract = Contract()
    getattr(contract, check)(TorchAdapter(), *arguments)
    with pytest.raises((AssertionError, KeyError, ValueError, pytest.fail.Exception)):
        getattr(contract, check)(fault(), *arguments)
