"""The files of a distillation besides its texts: settings and lock, log of the training, and the saved draft."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from forerun.core.disk_room import free_bytes
from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.locks import hold
from forerun.core.model_spec import ModelSpec
from forerun.core.output_file import remove, write_whole
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.config import DistillConfig
from forerun_lab.distill.head_kind import TrainableHead
from forerun_lab.distill.network import HeadNetwork, Network
from forerun_lab.distill.trainer import Trainer

SETTINGS_NAME: Final = "settings.json"
MIB: Final = 2**20
TEXT_BYTES_PER_S: Final = 0.3 * MIB  # for 1,500 tokens/s, twice what two cores write with 135M parameters
STATE_BYTES: Final = 20  # per parameter: the training state twice while it is replaced, and the draft


class RunPlace:
    """A run's folder, locked until `close`."""

    def __init__(self, config: DistillConfig, identity: str) -> None:
        """Create the folder, or resume the run in it.

        Raises:
            ConfigError: the folder holds other files, a draft of another target or a run with other settings, or
                another process writes there.
        """
        self._out = config.out
        self._file = config.run_folder / SETTINGS_NAME
        settings = settings_of(config, identity)
        self._require_own(settings)  # before a folder is made in a folder of another run
        self._lock = hold(config.run_folder)
        try:
            is_new = not self._require_own(settings)  # another process may have begun meanwhile
            remove_leftovers(config.out)
            if is_new:
                write_whole(self._file, json.dumps(settings, indent=2) + "\n")
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def _read(self) -> dict[str, Any] | None:
        """The settings of the run in the folder; None if there is no run yet."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            entries = self._out.iterdir() if self._out.exists() else ()
            if any(entry.name != "distill" for entry in entries) or any(self._file.parent.glob("*.safetensors")):
                raise ConfigError(
                    f"{self._out} is not empty and holds no run of forerun distill: give a new folder to --out"
                ) from None
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._file} cannot be read ({error}): give another folder to --out") from error
        return found if isinstance(found, dict) else {}

    def _require_own(self, settings: dict[str, Any]) -> bool:
        """Whether this run is there already; any other is refused."""
        found = self._read()
        if found is not None:
            self._require_same(found, settings)
        return found is not None

    def _require_same(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        found = {"kind": "model", **found}  # earlier versions made only models
        differing = [name for name, value in wanted.items() if found.get(name) != value and name != "target"]
        if "identity" in differing:
            raise ConfigError(
                f"{self._out} holds a draft of {found.get('target')}, another model than {wanted['target']}: "
                "give another folder to --out"
            )
        if differing:
            listed = ", ".join(f"{name} {found.get(name)}, not {wanted[name]}" for name in differing)
            raise ConfigError(
                f"the run in {self._out} has {listed}: give the same again, or another folder to --out; "
                "--time, --text and --questions may change"
            )


def settings_of(config: DistillConfig, identity: str) -> dict[str, Any]:
    """The settings that must be the same when a run is resumed."""
    return {
        "target": config.engine.target,
        "identity": identity,
        "chat_template": config.engine.chat_template,
        "seed": config.seed,
        "kind": config.kind,
        "layers": config.layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }


def remove_leftovers(out: Path) -> None:
    """Remove files that a killed process had begun to write; only the process that holds the folder may do this.

    Folders with such a name belong to other commands, which may still run.
    """
    for where, folders, names in os.walk(out):
        folders[:] = [name for name in folders if not is_part(name)]
        for name in filter(is_part, names):
            remove(Path(where, name))


def is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def require_room(config: DistillConfig, spec: ModelSpec) -> None:
    """Refuse a disk without room for the texts of the whole run and for a draft a third of the target's size.

    Raises:
        ConfigError: names the space needed and the space free.
    """
    needed = TEXT_BYTES_PER_S * config.time + STATE_BYTES * spec.num_parameters / 3
    free = free_bytes(config.out.absolute())
    if free < needed:
        raise ConfigError(
            f"{config.out} has {free / MIB:,.0f} MiB free and this distillation may take {needed / MIB:,.0f}: "
            "give a folder on a larger disk to --out, or less --time"
        )


class RunLog:
    """Lines appended to a file; each has the seconds of training after which it was written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **values: Any) -> None:
        """Append a line.

        Raises:
            ConfigError: the line cannot be written, for example because the disk is full.
        """
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written ({error.strerror}): free some space, and the same command continues"
            ) from error

    def read(self) -> list[dict[str, Any]]:
        """Every complete line."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def forget_after(self, trained_s: float) -> None:
        """Remove the lines that a killed run wrote after its last save, and a partial line at the end."""
        if self._path.exists():
            kept = [line for line in self.read() if line["trained_s"] <= trained_s]
            write_whole(self._path, "".join(json.dumps(line) + "\n" for line in kept))


WEIGHT: Final = "weight/"
MAP_IDS: Final = ("target_ids", "draft_ids")


class SavedDraft:
    """The file of a draft in training."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self, spec: ModelSpec | HeadSpec, vocabulary: VocabularyMap, weights: Mapping[str, Tensor]) -> None:
        """Write a draft that is not yet trained."""
        self._write(spec, vocabulary, weights, {}, {"trained_s": 0.0, "num_tokens": 0})

    def keep(self, trainer: Trainer, trained_s: float) -> None:
        """Write the state of a training after `trained_s` seconds."""
        network = trainer.network
        notes = {"trained_s": trained_s, "num_tokens": trainer.num_tokens}
        self._write(network.spec, trainer.vocabulary, network.weights, trainer.state(), notes)

    def open(self, device: str) -> tuple[Trainer, float]:
        """The trainer, and the seconds it has trained so far.

        Raises:
            CheckpointError: the file is damaged.
        """
        try:
            with safe_open(self._path, "pt", device=device) as file:
                notes = json.loads((file.metadata() or {})["notes"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            vocabulary = VocabularyMap(**{name: tensors.pop(name) for name in MAP_IDS})
            weights = {
                name.removeprefix(WEIGHT): tensors.pop(name) for name in list(tensors) if name.startswith(WEIGHT)
            }
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._path} cannot be read ({error}): delete it, and a new draft is trained on the texts next to it"
            ) from error
        trainer = self._trainer(notes["spec"], weights, vocabulary, device)
        if tensors:
            trainer.restore(tensors, notes["num_tokens"])
        return trainer, notes["trained_s"]

    def _trainer(
        self, spec: dict[str, Any], weights: Mapping[str, Tensor], vocabulary: VocabularyMap, device: str
    ) -> Trainer:
        return Trainer(Network(msgspec.convert(spec, ModelSpec), weights), vocabulary, device=device)

    def _write(
        self,
        spec: ModelSpec | HeadSpec,
        vocabulary: VocabularyMap,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        notes: dict[str, Any],
    ) -> None:
        """Replace the file as a whole."""
        ids = {"target_ids": vocabulary.target_ids, "draft_ids": vocabulary.draft_ids}
        tensors = {**ids, **{WEIGHT + name: value for name, value in weights.items()}, **state}
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_whole(
            self._path,
            save(plain, {"notes": json.dumps({"spec": msgspec.to_builtins(spec), **notes})}),
            makes_folder=True,
        )


class SavedHead(SavedDraft):
    """The file of a head in training.

    Args:
        kind: of the head.
        read_target: reads the target, whose features the head learns from.
    """

    def __init__(self, path: Path, kind: TrainableHead[Any], read_target: Callable[[], Network]) -> None:
        super().__init__(path)
        self._kind = kind
        self._read_target = read_target

    def _trainer(
        self, spec: dict[str, Any], weights: Mapping[str, Tensor], vocabulary: VocabularyMap, device: str
    ) -> Trainer:
        network = HeadNetwork(msgspec.convert(spec, self._kind.spec), weights)
        return self._kind.trainer(network, vocabulary, self._read_target(), device=device)
