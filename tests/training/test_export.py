"""What was trained is what is shipped: the exported folder computes the training network's logits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.load import load_weights
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.model.runner import Runner
from forerun_lab.training.dataset import function_headers
from forerun_lab.training.export import hugging_face_config, hugging_face_tensors, write_json
from forerun_lab.training.network import Network, Shape
from forerun_lab.training.train import DRAFT, TARGET, Budget


@pytest.mark.parametrize("shape", [TARGET, DRAFT], ids=["target", "draft"])
def test_the_exported_model_is_the_trained_one(shape: Shape, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network(shape).eval()
    for parameter in network.parameters():
        parameter.data.copy_(parameter.data.bfloat16())  # as it is stored
    save_file(hugging_face_tensors(network.state_dict()), tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", hugging_face_config(shape, "float32"))
    spec = read_model_spec(tmp_path)
    weights = load_weights(tmp_path, spec, dtype=torch.float32)
    runner = Runner(spec, LoadedWeights(weights), backend=FUSED, capacity=32, dtype=torch.float32, device="cpu")
    ids = torch.randint(0, shape.vocab_size, (20,))
    with torch.inference_mode():
        expected = network(ids[None])[0]
    assert (runner.extend(ids.tolist(), num_logit_rows=20) - expected).abs().max() < 2e-4


def test_the_learning_rate_rises_holds_and_falls_to_zero() -> None:
    rates = [Budget(elapsed_s=second, total_s=1000.0).rate(0.8) for second in (0, 4, 100, 400, 700, 800, 1000)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.125 / 0.45, 0.0, 0.0])


def test_headers_end_with_their_docstring() -> None:
    source = 'def double(x):\n    """Return twice x, for any number x there is in this world, and no less."""\n'
    source += "    y = 2 * x\n    return y\n\n\ndef short():\n    return 1\n"
    assert function_headers(source) == [source.split("    y =")[0].rstrip()]
