"""Folders of Gemma 4's assistants."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.drafting.heads.assistant import ASSISTANT, ORDER, AssistantSpec, token_order
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.stored import find_head

TEXT = {
    "model_type": "gemma4_text", "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "global_head_dim": 8, "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5,
}  # fmt: skip
CONFIG = {
    "model_type": "gemma4_assistant", "text_config": TEXT, "backbone_hidden_size": 20, "use_ordered_embeddings": True,
    "num_centroids": 6, "centroid_intermediate_top_k": 2,
}  # fmt: skip
Edit = Callable[[dict[str, Any], dict[str, Tensor]], object]


def opened(folder: Path, edit: Edit = lambda config, tensors: None) -> StoredHead:
    """The head in a folder written with the names of Google's, after an edit."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    spec = ASSISTANT.read(JsonFile(path=folder, values=config), {})
    tensors = {}
    for name, shape in spec.needed_shapes():
        is_in_model = name.startswith(("layers.", "norm.", "embed_tokens."))
        tensors[f"model.{name}" if is_in_model else name] = torch.randn(shape)
    tensors[ORDER] = torch.randperm(24)
    edit(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    stored = find_head(open_source(str(folder)))
    assert stored is not None, "an assistant is recognised"
    return stored


def test_an_assistant_is_read(tmp_path: Path) -> None:
    stored = opened(tmp_path)
    spec = stored.spec
    assert isinstance(spec, AssistantSpec)
    assert (spec.target_hidden_size, spec.num_centroids, spec.num_active, spec.taps(30)) == (20, 6, 2, (29,))
    assert (spec.body.of_layer(0).head_dim, spec.body.of_layer(1).head_dim, spec.body.window_of(0)) == (4, 8, 5)
    order = token_order(stored)
    assert order is not None
    assert sorted(order.tolist()) == list(range(24))
    assert stored.weights(dtype=torch.float32, device="cpu")["layers.1.self_attn.q_proj.weight"].shape == (16, 8)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda config, tensors: tensors.update({"model.layers.0.self_attn.k_proj.weight": torch.ones(4, 8)}),
            "k_proj",
        ),
        (lambda config, tensors: tensors.pop("post_projection.weight"), "lacks tensor 'post_projection.weight'"),
        (lambda config, tensors: tensors.pop(ORDER), "token_ordering"),
        (lambda config, tensors: tensors.update({ORDER: tensors[ORDER].float()}), "token_ordering' holds .* type F32"),
        (lambda config, tensors: tensors.update({ORDER: tensors[ORDER][:23]}), r"token_ordering' has shape \[23\]"),
        (lambda config, tensors: config["text_config"].update(hidden_size_per_layer_input=4), "per_layer_input"),
        (lambda config, tensors: config["text_config"].update(enable_moe_block=True), "enable_moe_block"),
        (lambda config, tensors: config.update(num_centroids=7), "num_centroids"),
        (lambda config, tensors: config.update(backbone_hidden_size=9), "_projection.weight.* has shape"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(edit: Edit, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, edit)


def test_centroids_without_all_tokens_are_refused(tmp_path: Path) -> None:
    stored = opened(tmp_path, lambda config, tensors: tensors.update({ORDER: torch.zeros(24, dtype=torch.int64)}))
    with pytest.raises(CheckpointError, match="every token once"):
        token_order(stored)
