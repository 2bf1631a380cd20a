"""A folder prepared for ranks, as a CheckpointSource."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from forerun.checkpoints.huggingface.folder import ModelFolder
from forerun.checkpoints.identity import sha256_of
from forerun.checkpoints.prepared.manifest import PREPARE_AGAIN, Manifest, rank_name, read_manifest
from forerun.checkpoints.source import Reading
from forerun.core.errors import CheckpointError
from forerun.sharding.plan import ShardPlan

if TYPE_CHECKING:
    from forerun.checkpoints.prepared.rank_file import RankWeights
    from forerun.model.weights import DenseWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFolder(ModelFolder):
    """A file of weights for each rank; all other files are as in a Hugging Face folder.

    See CheckpointSource. A host needs only the files of its own ranks.
    """

    def manifest(self) -> Manifest:
        return read_manifest(self.folder, self.spec())

    def stored_dtype(self) -> str:
        return self.manifest().dtype

    def stored_formats(self) -> Mapping[str, int]:
        return self.manifest().formats

    def identity(self) -> str:
        return self.manifest().identity

    def weights(self, **reading: Unpack[Reading]) -> "RankWeights":
        """All weights of a folder that was prepared for one rank."""
        (plan,) = self.plans(1)
        return self.rank_weights(plan, **reading)

    def plans(self, num_ranks: int) -> Sequence[ShardPlan]:
        """The plan of each of `num_ranks` ranks.

        Raises:
            CheckpointError: the folder was prepared for another number of ranks.
        """
        prepared = len(self.manifest().ranks)
        if prepared != num_ranks:
            raise CheckpointError(
                f"{self.folder} was prepared for {prepared} ranks, but {num_ranks} were requested: use --target-ranks "
                f"{prepared}, or prepare the model for {num_ranks}"
            )
        return self.manifest().plans(self.spec())

    def rank_weights(self, plan: ShardPlan, **reading: Unpack[Reading]) -> "RankWeights":
        """One rank's weights, after checking its file's digest.

        Raises:
            CheckpointError: the file was changed, or was prepared in another format.
        """
        manifest = self.manifest()
        weight_format = reading.get("weight_format", "plain")
        if weight_format not in ("plain", manifest.weights):
            raise CheckpointError(
                f"{self.folder} was prepared with {manifest.weights} weights, but {weight_format} was requested: leave "
                f"--weights out, or prepare the model with --weights {weight_format}"
            )
        self._check_file(manifest, plan.rank)
        return self._open(plan, **reading)

    def output(self, **reading: Unpack[Reading]) -> "DenseWeight":
        """The weight of the whole output: the embedding, which every rank has, or the parts of all ranks, joined.

        It is for drafts, which change no text, so digests are not compared.

        Raises:
            CheckpointError: a rank's file is missing on this host.
        """
        import torch

        from forerun.checkpoints.typed_weights import HEAD  # imports torch, as do these
        from forerun.model.quantise import as_plain
        from forerun.model.weights import DenseWeight

        parts = []
        plans = self.manifest().plans(self.spec())
        for plan in plans:
            path = self.folder / rank_name(plan.rank)
            if not path.exists():
                raise CheckpointError(
                    f"{path} is missing: the draft head has no output of its own, and the target's is divided among "
                    f"{len(plans)} ranks: copy the files of all ranks to this host, or choose another draft"
                )
            rank = self._open(plan, **reading)
            if rank.is_tied:
                return rank.table()
            parts.append(as_plain(rank.linear(HEAD)[0])[: plan.vocab.num_real])
        return DenseWeight(values_OI=torch.cat(parts))

    def _open(self, plan: ShardPlan, **reading: Unpack[Reading]) -> "RankWeights":
        from forerun.checkpoints.prepared.rank_file import RankWeights  # imports torch

        path = self.folder / rank_name(plan.rank)
        device = reading.get("device", "cpu")
        on_progress = reading.get("on_progress")
        return RankWeights(path, self.spec(), plan, dtype=reading["dtype"], device=device, on_progress=on_progress)

    def _check_file(self, manifest: Manifest, rank: int) -> None:
        path = self.folder / rank_name(rank)
        expected = manifest.ranks[rank]
        try:
            num_bytes = path.stat().st_size
            if num_bytes != expected.num_bytes:
                raise CheckpointError(
                    f"{path} has {num_bytes} bytes, but {expected.num_bytes} were written: {PREPARE_AGAIN}"
                )
            digest = sha256_of(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): {PREPARE_AGAIN}") from error
        if digest != expected.sha256:
            raise CheckpointError(f"{path} is damaged, its bytes differ from those that were written: {PREPARE_AGAIN}")
