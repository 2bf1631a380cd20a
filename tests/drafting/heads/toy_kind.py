"""A kind of draft head in one file: a state that begins as the target's last feature and mixes with each token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forerun.checkpoints.huggingface.config import model_spec_of
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import HeadKind, HeadSpec, Shape, Shapes, StoredHead

if TYPE_CHECKING:
    from forerun.drafting.heads.drafter import HeadDrafter
    from forerun.drafting.heads.loading import HeadLoading


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySpec(HeadSpec):
    body: ModelSpec
    target_hidden_size: int
    num_taps: int = 1

    @property
    def label(self) -> str:
        return "toy"

    def taps(self, num_layers: int) -> tuple[int, ...]:
        return (num_layers - 1,)

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        yield "mix.weight", (self.body.hidden_size, 2 * self.body.hidden_size)

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        yield from ()

    def require_fit(self, stored: StoredHead, target: ModelSpec, target_name: str) -> None:
        return


def is_toy(config: JsonFile) -> bool:
    return config.has("toy_head")


def read(config: JsonFile, shapes: Shapes) -> ToySpec:
    body = model_spec_of(config.nested("toy_head"))
    return ToySpec(body=body, target_hidden_size=body.hidden_size)


def load(stored: StoredHead, given: "HeadLoading") -> "HeadDrafter":
    import torch
    from torch import Tensor

    from forerun.drafting.draft_model import serial_rows
    from forerun.drafting.heads.drafter import HeadDrafter
    from forerun.drafting.heads.eagle_network import EagleRows
    from forerun.drafting.heads.executor import HeadExecutor
    from forerun.drafting.heads.layer import Embed, HeadWeights, Linear
    from forerun.drafting.heads.loading import load_with_cache
    from forerun.model.executor import ForwardInput, ForwardOutput
    from forerun.model.tree_cache import TreeCache

    class ToyExecutor(HeadExecutor):
        def __init__(self, spec: ToySpec, weights: HeadWeights, embed: Embed, output: Linear, cache: TreeCache) -> None:
            super().__init__(spec.body, cache, lambda features: features[:, 0])
            self._mix = weights.linear("mix")
            self._embed = embed
            self._output = output

        def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
            embedded_TH = self._embed(self.ids(inputs.token_ids)).to(states_TH.dtype)
            states_TH = self._mix(torch.cat((embedded_TH, states_TH), 1)).tanh()
            logits = self._output(states_TH[len(states_TH) - inputs.num_logit_rows :])
            return ForwardOutput(logits=logits, features=states_TH[:, None])

    class ToyDrafter(HeadDrafter):
        def _make_rows(self, runner, config):  # type: ignore[no-untyped-def]
            return EagleRows(runner, runner.executor, self._features, serial_rows(config.shape))

    assert isinstance(stored.spec, ToySpec)
    return load_with_cache(
        stored, given, stored.spec, num_behind=serial_rows(given.config.shape),
        make_executor=ToyExecutor, drafter=ToyDrafter,
    )  # fmt: skip


TOY: Final = HeadKind(
    plural="toys", is_named=is_toy, recognises=lambda config, _: is_toy(config), read=read, network="toy_kind",
)  # fmt: skip
