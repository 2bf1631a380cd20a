"""Train target and draft together: the target on text, the draft on the target's own distributions.

One budget of wall-clock seconds decides the schedule. For the first `JOINT_SHARE` of it both models learn from the same
windows; in the rest the target is finished and only the draft goes on, against the target without dropped sublayers.
Stopping is safe at any time: the state is saved every few minutes and a second call goes on from there.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional

from forerun_lab.training.network import Network, Shape

TARGET = Shape(num_layers=12, hidden_size=256, num_heads=4, num_kv_heads=2, intermediate_size=704, vocab_size=4096)
DRAFT = Shape(
    num_layers=2, hidden_size=160, num_heads=5, num_kv_heads=1, intermediate_size=448, vocab_size=4096, head_dim=32
)
MAX_DROP = 0.2
JOINT_SHARE = 0.80
LONG_CONTEXT_SHARE = 0.70  # from here on windows are 1024 tokens long, before that 512
TOKENS_PER_STEP = 4096
TOKENS_PER_MICRO_BATCH = 2048
SAVE_EVERY_S = 300.0
DISTIL_RATE = 0.6  # learning-rate factor at which the draft goes on alone; falls to 0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Where a run stands: seconds trained so far against seconds allowed."""

    elapsed_s: float
    total_s: float

    @property
    def share(self) -> float:
        return min(1.0, self.elapsed_s / self.total_s)

    def rate(self, end: float) -> float:
        """Learning-rate factor in [0, 1]: short warm-up, flat, then linear decay over the last 45 % before `end`."""
        progress = self.share / end
        return max(0.0, min(1.0, progress / 0.01, (1.0 - progress) / 0.45))


class Side:
    """One model with its two optimizers: Muon for the matrices inside the layers, AdamW for the rest."""

    def __init__(self, network: Network) -> None:
        self.network = network
        inner = [p for p in network.blocks.parameters() if p.ndim == 2]
        inner_ids = {id(p) for p in inner}
        rest = [p for p in network.parameters() if id(p) not in inner_ids]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inner, lr=3e-3, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]

    def step(self, factor: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, object]:
        return {"network": self.network.state_dict(), "optimizers": [item.state_dict() for item in self.optimizers]}

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


class Run:
    """A training run in `folder`: windows, both sides, and what has been done so far."""

    def __init__(self, folder: Path, total_s: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.folder = folder
        self.total_s = total_s
        self.tokens = np.load(folder / "data" / "train.npy", mmap_mode="r")
        self.held_out = np.load(folder / "data" / "held_out.npy", mmap_mode="r")
        self.target = Side(Network(TARGET, MAX_DROP))
        self.draft = Side(Network(DRAFT))
        self.step_count = 0
        self.tokens_seen = 0
        self.elapsed_s = 0.0
        self.order = np.random.default_rng(seed).permutation(len(self.tokens) // 1025)
        if (folder / "state.pt").exists():
            self.restore(torch.load(folder / "state.pt", weights_only=True))
        for block in [*self.target.network.blocks, *self.draft.network.blocks]:
            block.compile(dynamic=False)

    @property
    def budget(self) -> Budget:
        return Budget(elapsed_s=self.elapsed_s, total_s=self.total_s)

    def save(self) -> None:
        state = {
            "target": self.target.state(),
            "draft": self.draft.state(),
            "step_count": self.step_count,
            "tokens_seen": self.tokens_seen,
            "elapsed_s": self.elapsed_s,
        }
        torch.save(state, self.folder / "state.tmp")
        (self.folder / "state.tmp").replace(self.folder / "state.pt")

    def restore(self, state: dict[str, Any]) -> None:
        self.target.load(state["target"])
        self.draft.load(state["draft"])
        self.step_count = state["step_count"]
        self.tokens_seen = state["tokens_seen"]
        self.elapsed_s = state["elapsed_s"]

    def micro_batch(self) -> Tensor:
        """[B, T + 1] int64: the next windows of the shuffled stream."""
        length = 1024 if self.budget.share >= LONG_CONTEXT_SHARE else 512
        rows = list[Tensor]()
        while len(rows) * length < TOKENS_PER_MICRO_BATCH:
            window = self.order[(self.tokens_seen // 1024) % len(self.order)] * 1025
            start = window + (512 if length == 512 and self.tokens_seen % 1024 else 0)
            rows.append(torch.from_numpy(self.tokens[start : start + length + 1].astype(np.int64)))
            self.tokens_seen += length
        return torch.stack(rows)

    def train_step(self) -> dict[str, float]:
        """One optimizer step; losses in nats per token."""
        return self.joint_step() if self.budget.share < JOINT_SHARE else self.distil_step()

    def joint_step(self) -> dict[str, float]:
        """Both sides learn from the same windows of text."""
        self.target.network.train()
        num_parts = TOKENS_PER_STEP // TOKENS_PER_MICRO_BATCH
        text_loss = guess_loss = 0.0
        for _ in range(num_parts):
            ids = self.micro_batch()
            with torch.autocast("cpu", torch.bfloat16):
                target_logits = self.target.network(ids[:, :-1]).flatten(0, 1).float()
                draft_logits = self.draft.network(ids[:, :-1]).flatten(0, 1).float()
            loss = functional.cross_entropy(target_logits, ids[:, 1:].flatten())
            distance = divergence(draft_logits, target_logits.detach())
            (loss + distance).div(num_parts).backward()
            text_loss += loss.item() / num_parts
            guess_loss += distance.item() / num_parts
        self.target.step(self.budget.rate(JOINT_SHARE))
        self.draft.step(min(1.0, self.budget.share / 0.01))
        self.step_count += 1
        return {"loss": text_loss, "kl": guess_loss}

    def distil_step(self) -> dict[str, float]:
        """The draft alone learns, from the finished target with all its sublayers."""
        self.target.network.eval()
        num_parts = TOKENS_PER_STEP // TOKENS_PER_MICRO_BATCH
        guess_loss = 0.0
        for _ in range(num_parts):
            ids = self.micro_batch()
            with torch.autocast("cpu", torch.bfloat16):
                with torch.no_grad():
                    target_logits = self.target.network(ids[:, :-1]).flatten(0, 1).float()
                draft_logits = self.draft.network(ids[:, :-1]).flatten(0, 1).float()
            distance = divergence(draft_logits, target_logits)
            distance.div(num_parts).backward()
            guess_loss += distance.item() / num_parts
        self.draft.step(DISTIL_RATE * (1.0 - self.budget.share) / (1.0 - JOINT_SHARE))
        self.step_count += 1
        return {"distil_kl": guess_loss}

    @torch.inference_mode()
    def evaluate(self, num_windows: int = 48) -> dict[str, float]:
        """Held-out loss of the target, KL of the draft from it, and how often both name the same next token."""
        self.target.network.eval()
        loss = distance = agreement = 0.0
        spacing = len(self.held_out) // num_windows
        for number in range(num_windows):
            ids = torch.from_numpy(self.held_out[number * spacing : number * spacing + 513].astype(np.int64))[None]
            with torch.autocast("cpu", torch.bfloat16):
                target_logits = self.target.network(ids[:, :-1])[0].float()
                draft_logits = self.draft.network(ids[:, :-1])[0].float()
            loss += functional.cross_entropy(target_logits, ids[0, 1:]).item() / num_windows
            distance += divergence(draft_logits, target_logits).item() / num_windows
            agreement += (target_logits.argmax(-1) == draft_logits.argmax(-1)).float().mean().item() / num_windows
        return {"held_out_loss": loss, "held_out_kl": distance, "agreement": agreement}


def describe(record: dict[str, float]) -> str:
    """The losses of one step for the progress bar."""
    return " ".join(f"{name} {record[name]:.3f}" for name in ("loss", "kl", "distil_kl") if name in record)


def divergence(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of the draft from the target, in nats per token; logits [T, V]."""
    return functional.kl_div(
        draft_logits.log_softmax(-1), target_logits.log_softmax(-1), log_target=True, reduction="batchmean"
    )


def train(folder: Path, total_s: float, seed: int) -> Run:
    """Train until the budget is used, writing log.jsonl and state.pt into `folder`."""
    torch._inductor.config.cpp.dynamic_threads = True  # so that set_num_threads below also reaches compiled code
    run = Run(folder, total_s, seed)
    last_save_s = run.elapsed_s
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with (folder / "log.jsonl").open("a") as log, Progress(*columns) as progress:
        bar = progress.add_task("training", total=total_s, completed=int(run.elapsed_s))
        while run.elapsed_s < total_s:
            # Re-read at every step, so that the run can be moved to other cores while it goes on.
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            began = time.monotonic()
            record = run.train_step()
            run.elapsed_s += time.monotonic() - began
            if run.step_count % 50 == 0:
                record |= run.evaluate()
            record |= {"step": run.step_count, "tokens": run.tokens_seen, "elapsed_s": round(run.elapsed_s, 1)}
            log.write(json.dumps(record) + "\n")
            log.flush()
            progress.update(bar, completed=run.elapsed_s, description=describe(record))
            if run.elapsed_s - last_save_s > SAVE_EVERY_S:
                run.save()
                last_save_s = run.elapsed_s
    run.save()
    return run
