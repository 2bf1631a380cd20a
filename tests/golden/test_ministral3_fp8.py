"""Ministral 3 in FP8, written as Mistral publishes it: the logits of transformers with the values that are meant."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.checkpoints.open import open_source
from tests.golden.test_random_families import MAX_ERROR, largest_difference, runner_of

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES

QUANTISATION: Final = {
    "activation_scheme": "static", "dequantize": False, "quant_method": "fp8", "weight_block_size": None,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head", "model.vision_tower"],
}  # fmt: skip
LARGEST: Final = 448.0  # of a float of 8 bits
# As transformers writes them before version 5 and since, which ones a text model needs none of.
LAYOUTS: Final = {
    "language_model.": ("language_model.model.", "language_model.lm_head.weight", ""),
    "model.": ("model.language_model.", "lm_head.weight", "model."),
}


def stored(model: Any, layout: str) -> dict[str, Tensor]:
    """The tensors of a folder; the model's weights become the values that these stand for."""
    inside, head, others = LAYOUTS[layout]
    is_tied = model.config.tie_word_embeddings
    tensors = {
        f"{others}vision_tower.patch_conv.weight": torch.ones(4, 3, 2, 2, dtype=torch.bfloat16),
        f"{others}multi_modal_projector.linear_1.weight": torch.ones(4, 4, dtype=torch.bfloat16),
    }
    for own_name, weight in model.named_parameters():
        name = head if own_name == "lm_head.weight" else own_name.replace("model.", inside, 1)
        if "_proj" in own_name:
            scale = (weight.abs().max() / LARGEST).to(torch.bfloat16)
            floats = (weight / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
            module = name.removesuffix("weight")
            tensors |= {
                name: floats,
                f"{module}weight_scale_inv": scale,
                f"{module}activation_scale": torch.tensor(0.013, dtype=torch.bfloat16),
            }
            values = floats.double() * scale.double()
        else:
            values = weight.to(torch.bfloat16)
            if not (is_tied and own_name == "lm_head.weight"):
                tensors[name] = values.clone()
        weight.copy_(values)
    return tensors


def write(folder: Path, model: Any, layout: str) -> None:
    """A folder with a vision model, and with the copy in Mistral's own layout that lies beside it."""
    with torch.no_grad():
        tensors = stored(model, layout)
    rope = {**model.config.rope_parameters, "type": "yarn"}
    text = {**model.config.to_dict(), "rope_parameters": rope, "dtype": "bfloat16"}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "dtype": "bfloat16",
        "image_token_index": 10, "multimodal_projector_bias": False, "spatial_merge_size": 2,
        "quantization_config": QUANTISATION, "text_config": text, "vision_config": {"model_type": "pixtral"},
        "tie_word_embeddings": True,  # whatever the text model says
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    save_file({"tok_embeddings.weight": torch.ones(1)}, folder / "consolidated.safetensors")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("seed", "is_tied"), [(2, True), (3, False)])
def test_logits_are_those_of_the_scaled_values(seed: int, is_tied: bool, layout: str, tmp_path: Path) -> None:
    model = FAMILIES["ministral3"].build(seed)
    write(tmp_path, model, layout)
    source = open_source(str(tmp_path))
    assert source.spec().family == "ministral3"
    assert source.spec().tied_embeddings == model.config.tie_word_embeddings == is_tied
    assert source.stored_formats()["F8_E4M3"] == sum(
        weight.numel() for name, weight in model.named_parameters() if "_proj" in name
    )
    assert source.stored_dtype() == "bfloat16"
    for kernels in (REFERENCE, FUSED):
        assert largest_difference(model, runner_of(tmp_path, kernels, torch.float64), seed) <= MAX_ERROR
