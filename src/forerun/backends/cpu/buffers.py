"""The buffers of a pass and their widths, with additional buffers for layers that need other widths."""

from collections.abc import Mapping

from forerun.core.mixers import GatedDeltaNet, Mixer
from forerun.core.model_spec import ModelSpec


class BufferWidths:
    """Floats per row of every buffer by its name; `widths` are in the order of the library's numbers.

    A layer with other heads, another MLP or a mixer has its own buffers, so that rows of a buffer are contiguous.
    """

    def __init__(self, spec: ModelSpec, num_logits: int) -> None:
        self._spec = spec
        inputs = spec.num_layers * spec.layer_input_size
        self.widths = {
            "x": spec.hidden_size,
            "h": spec.hidden_size,
            **widths_of_layer(spec, spec.mixer, has_keys=True),
            "shared_gate": 1,
            "partial": spec.hidden_size,
            "branch": spec.hidden_size,
            "layer_projection": inputs,
            "layer_inputs": inputs,
            "gate_input": spec.layer_input_size,
            "router": spec.num_experts,
            "expert_gated": spec.num_chosen_experts * spec.intermediate_size,
            "expert_products": spec.num_chosen_experts * spec.hidden_size,
            "logits": num_logits,
        }
        for layer in range(spec.num_layers):
            for name, width in self._of_layer(layer).items():
                self.widths.setdefault(self.name(name, layer), width)

    def name(self, buffer: str, layer: int) -> str:
        """The name of the buffer that ops of this layer (-1: no layer) use under a program's name."""
        width = self._of_layer(layer).get(buffer) if layer >= 0 else None
        return buffer if width is None or width == self.widths[buffer] else f"{buffer} of {width}"

    def _of_layer(self, layer: int) -> Mapping[str, int]:
        spec = self._spec
        return widths_of_layer(spec.of_layer(layer), spec.mixer_of(layer), has_keys=not spec.borrows(layer))


def widths_of_layer(one: ModelSpec, mixer: Mixer | None, *, has_keys: bool) -> Mapping[str, int]:
    """The buffers whose width depends on a layer's heads, its mixer and its MLP, and their widths."""
    inner = one.shared_size if one.num_experts else one.intermediate_size
    return {
        "mixer_in": 0 if mixer is None else mixer.in_size,
        "convolved": mixer.num_channels if isinstance(mixer, GatedDeltaNet) else 0,
        "output_gate": one.q_size * one.gates_attention,
        "qkv": one.q_size + 2 * one.kv_size * has_keys,
        "q": one.q_size,
        "mixed": one.q_size if mixer is None else mixer.out_size,
        "gate_up": 2 * inner,
        "gated": inner,
    }
