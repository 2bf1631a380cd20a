"""The draft head in Qwen3.5's own files, trained to predict several tokens: `mtp.*` in folders, `nextn` in GGUF files.

Sources: vLLM's qwen3_5_mtp.py; llama.cpp's nextn tensors (#22673, #24025, #25589); LightLLM #1402. The state is the
target's last hidden state behind its final norm, the embedding comes first in `fc`, and GGUF files hold 1 + w of norms.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.names import IN_LAYERS
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.plain_names import rows_of
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.source import CheckpointSource
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import HeadKind, HeadSpec, InnerHead, Shape, Shapes, StoredHead
from forerun.drafting.heads.tensors import OUTPUT, TABLE, layer_shapes

FAMILIES: Final = ("qwen3_5_text",)
LAYER: Final = "layers.0."
QUERIES: Final = f"{LAYER}self_attn.q_proj.weight"
GATES: Final = f"{LAYER}self_attn.q_proj_gate.weight"
OUTER: Final = {  # names in folders, and in GGUF files
    "embedding_norm.weight": ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
    "hidden_norm.weight": ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
    "fc.weight": ("fc.weight", "nextn.eh_proj.weight"),
    "norm.weight": ("norm.weight", "nextn.shared_head_norm.weight"),
    TABLE: (TABLE, "nextn.embed_tokens.weight"),
    OUTPUT: (OUTPUT, "nextn.shared_head_head.weight"),
}
GGUF_NORMS: Final = {
    "attn_norm.weight": f"{LAYER}input_layernorm.weight",
    "post_attention_norm.weight": f"{LAYER}post_attention_layernorm.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpSpec(HeadSpec):
    """It predicts the token after the next one from the next token's embedding and the target's last hidden state,
    each normalised, by one layer like those of the target with attention; the target's output gives its logits. Its
    own state, behind its last norm, stands for the target's where that is not known yet.

    Args:
        body: sizes of its layer, which are the target's.
        gates_attention: attention's output is multiplied by the sigmoid of a gate.
    """

    body: ModelSpec
    target_hidden_size: int
    gates_attention: bool = True
    num_taps: int = 1

    @property
    def label(self) -> str:
        return "MTP"

    @property
    def reads(self) -> str:
        return "the target's last hidden state"

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The target's last layer; the head itself applies the target's final norm to its output."""
        return (num_layers - 1,)

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        hidden = self.body.hidden_size
        yield "fc.weight", (hidden, 2 * hidden)
        yield from ((f"{name}norm.weight", (hidden,)) for name in ("embedding_", "hidden_", ""))
        yield from layer_shapes(self.body, LAYER, hidden)
        if self.gates_attention:
            yield GATES, (self.body.q_size, hidden)

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        yield from ((name, (self.body.vocab_size, self.body.hidden_size)) for name in (TABLE, OUTPUT))

    def require_fit(self, stored: StoredHead, target: ModelSpec, target_name: str) -> None:
        """It is in the target's own files."""


def find_inside(source: CheckpointSource) -> InnerHead | None:
    """The head in a model's files; None without one, and if it is not of this form: it is then not used."""
    match source:
        case HuggingFaceFolder():
            own = {
                name.removeprefix("mtp."): tensor
                for name, tensor in catalogue(source.folder).items()
                if name.startswith("mtp.")
            }
            if not own or (spec := source.spec()).family not in FAMILIES:
                return None
            names = {stored: name for name, (stored, _) in OUTER.items()}
            return _head_of({names.get(name, name): tensor for name, tensor in own.items()}, spec, is_folder=True)
        case GgufCheckpoint():
            if not any(".nextn." in name for name in source.file.tensors):
                return None
            spec = source.spec()
            block = f"blk.{spec.num_layers}."
            own = {
                gguf_name(name.removeprefix(block)): tensor
                for name, tensor in source.file.tensors.items()
                if int((re.match(r"blk\.(\d+)\.", name) or [0, -1])[1]) >= spec.num_layers
            }
            return _head_of(own, spec, is_folder=False) if spec.family in FAMILIES else None
        case _:
            return None


def gguf_name(name: str) -> str:
    """Our name for a tensor of a GGUF file's block."""
    outer = {stored: ours for ours, (_, stored) in OUTER.items()} | GGUF_NORMS
    if name in outer:
        return outer[name]
    for folder, gguf in IN_LAYERS.items():
        if name.startswith(gguf):
            return f"{LAYER}{folder}{name.removeprefix(gguf)}"
    return name


def _head_of(own: Mapping[str, StoredTensor], target: ModelSpec, *, is_folder: bool) -> InnerHead | None:
    body = ModelSpec(
        family="llama",
        num_layers=1,
        hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        vocab_size=target.vocab_size,
        max_positions=target.max_positions,
        norm_eps=target.norm_eps,
        qk_norm=target.qk_norm,
        rope=target.rope,
    )
    spec = MtpSpec(body=body, target_hidden_size=target.hidden_size, gates_attention=target.gates_attention)
    tensors = {name: [tensor] for name, tensor in own.items()}
    if spec.gates_attention and QUERIES in own and own[QUERIES].shape[0] == 2 * body.q_size:
        names = [f"{name}.{head}.weight" for head in range(body.num_heads) for name in ("m.self_attn.q_proj", "gate")]
        parts = list(rows_of(own[QUERIES], names, [body.head_dim] * len(names)))
        tensors[QUERIES] = parts[::2]
        tensors[GATES] = parts[1::2]
    offset = BY_NAME[target.family].norm_offset if is_folder else 0.0
    return InnerHead(spec=spec, tensors=tensors, norm_offset=offset)


def _read(config: JsonFile, shapes: Shapes) -> HeadSpec:
    raise AssertionError("no folder of its own is recognised")


MTP: Final = HeadKind(
    plural="heads in Qwen3.5's own files",
    is_named=lambda config: False,
    recognises=lambda config, shapes: False,
    read=_read,
    network="mtp_network",
    find_inside=find_inside,
)
