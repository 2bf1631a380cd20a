"""The user's configuration: frozen, checked when built, unknown keys refused by Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from forerun.core.drafter_config import (
    BUILTIN_TARGET,
    MAX_RANKS,
    DrafterConfig,
    LayerSkip,
    automatic_drafter,
)
from forerun.core.errors import require
from forerun.core.field_types import read_fields, setting
from forerun.core.pace import read_device

DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64"]
WeightsName = Literal["stored", "int8", "int4"]
InputsName = Literal["int16", "int8"]
Exactness = Literal["fast", "exact"]
KernelsName = Literal["auto", "torch", "triton"]
AUTO_DEVICE: Final = "auto"
MOST_BIAS: Final = 1e38  # within float32
MOST_TEMPERATURE: Final = 1e4  # above it all tokens are as likely as each other to float32
MOST_PENALTY: Final = 1e4
MOST_LOGPROBS: Final = 20  # likeliest tokens beside each token of a text, as in the OpenAI API
UNTIL_FULL: Final = -1  # tokens to write: until the context is full
SAVED_BYTES: Final = 512 * 10**6  # of SmolLM2 22,000 tokens, of an 8B model 4,000; a laptop has 8 GB and more
OF_THE_MODEL: Final = "[what the model's generation_config.json says]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. temperature 0 is greedy; nothing else is.

    Settings apply in the order logit_bias, repetition_penalty, frequency and presence penalty, temperature, top_k,
    top_p, min_p. That is transformers' order, and vLLM's but for min_p, which vLLM applies before top_k. Both keep
    all tokens that equal the last one of top_k; here exactly top_k stay, of equal ones those with the lowest ids.

    Args:
        max_new_tokens: None means 256, or as many as still fit; -1 as many as fit.
        logit_bias: added to the scores of these token ids.
        stop: texts before which the answer ends.
        stop_token_ids: tokens that end the answer, beside the model's own.
        seed: the same seed gives the same text; None draws a fresh one for each request.
        logprobs: how likely each token was, beside as many of the likeliest tokens at its place, 0 to 20; natural
            logarithms of the target's own distribution, before all settings above. None: nothing is said. A GPU then
            plays no rounds by itself.
    """

    max_new_tokens: int | None = setting(
        None, "--max-new-tokens", "--max-tokens", "-n",
        help="Tokens to write at most; -1: until the context is full [256, or what fits].",
    )  # fmt: skip
    temperature: float = setting(0.0, "--temperature", "--temp", help=f"0 is greedy. {OF_THE_MODEL}")
    top_k: int = setting(0, "--top-k", help=f"Keep the k likeliest; 0 keeps all. {OF_THE_MODEL}")
    top_p: float = setting(1.0, "--top-p", help=f"Keep the likeliest up to this probability. {OF_THE_MODEL}")
    min_p: float = setting(
        0.0, "--min-p", help=f"Drop what is less likely than this share of the best. {OF_THE_MODEL}"
    )  # fmt: skip
    repetition_penalty: float = setting(
        1.0, "--repetition-penalty", "--repeat-penalty", help=f"Above 1: fewer repeats; 1 is none. {OF_THE_MODEL}"
    )
    presence_penalty: float = setting(0.0, "--presence-penalty", help="Taken off tokens written before.")
    frequency_penalty: float = setting(0.0, "--frequency-penalty", help="Taken off per time a token was written.")
    logit_bias: Mapping[int, float] = setting(
        dict, "--logit-bias", help="ID=VALUE, added to a token's score; repeatable."
    )  # fmt: skip
    stop: tuple[str, ...] = setting((), "--stop", help="End before this text; repeatable.")
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = setting(False, "--ignore-eos", help="Go on after the model's own end of text.")
    seed: int | None = setting(None, "--seed", "-s", help="Same seed, same text.")
    logprobs: int | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        require(
            self.temperature == 0.0 or 1e-4 <= self.temperature <= MOST_TEMPERATURE,
            f"temperature {self.temperature} must be 0 (greedy) or lie in [0.0001, {MOST_TEMPERATURE:g}]",
        )
        require(0 <= self.top_k < 2**31, f"top_k {self.top_k} must lie in [0, 2**31) (0 switches it off)")
        require(0.0 < self.top_p <= 1.0, f"top_p {self.top_p} must lie in (0, 1] (1 switches it off)")
        require(0.0 <= self.min_p <= 1.0, f"min_p {self.min_p} must lie in [0, 1] (0 switches it off)")
        require(
            1.0 / MOST_PENALTY <= self.repetition_penalty <= MOST_PENALTY,
            f"repetition_penalty {self.repetition_penalty} must lie in [{1.0 / MOST_PENALTY:g}, {MOST_PENALTY:g}] "
            "(1 switches it off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(-2.0 <= value <= 2.0, f"{name} {value} must lie in [-2, 2] (0 switches it off)")
        require(
            self.max_new_tokens is None or self.max_new_tokens >= 1 or self.max_new_tokens == UNTIL_FULL,
            f"max_new_tokens {self.max_new_tokens} must be >= 1, or -1 for as many as fit; left out it is at most 256",
        )
        for token_id, bias in self.logit_bias.items():
            require(
                abs(bias) <= MOST_BIAS or bias == float("-inf"),
                f"logit_bias of token {token_id} is {bias}: a number in [-{MOST_BIAS:g}, {MOST_BIAS:g}], or minus "
                "infinity is needed",
            )
        require("" not in self.stop, "stop holds an empty string, which would stop every text at once: leave it out")
        require(
            self.seed is None or 0 <= self.seed < 2**63,
            f"seed {self.seed} must lie in [0, 2**63); left out, every request draws a fresh one",
        )
        require(
            self.logprobs is None or 0 <= self.logprobs <= MOST_LOGPROBS,
            f"logprobs {self.logprobs} must lie in [0, {MOST_LOGPROBS}], or be None",
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Some tokens leave the race before the draw."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def shapes_scores(self) -> bool:
        """Scores undergo more than the division by the temperature."""
        return self.is_filtered or self.has_penalties or len(self.logit_bias) > 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: a target, where it runs, and its drafter.

    Args:
        target: checkpoint folder, GGUF file, hub name (org/model, or org/model:Q4_K_M), or the built-in target.
        drafter: the drafter; by default the fastest of those that cost little to have ready.
        dtype: what is computed in. "auto" takes the checkpoint's own, except where the CPU would only emulate it;
            beside weights of 8 or 4 bits a CPU takes bfloat16.
        weights: of linear layers: as they are stored, or rounded to so many bits on loading, of target and draft; the
            text is that of the rounded target.
        inputs: what a GGUF file's codes are multiplied with by the CPU's kernels: inputs rounded to whole numbers of 16
            bits, or of 8, as llama.cpp does. Eight are faster for several rows, and the text is that of the rounded
            target: about 4 tokens in 100 of SmolLM2's likeliest ones differ. Drafts always take 8.
        device: a torch device, such as "cpu" or "cuda:0"; "auto" is a GPU that works and has room for the model, else
            the CPU; "paced:target=13ms;draft=2ms" slows passes, see core/pace.
        target_ranks: processes that share the target, each with a part of every layer, on as many GPUs from `device`
            on, or on the CPU.
        remote_ranks: those of them that come from other hosts, see `forerun worker --role target`. CPUs run torch's
            kernels then.
        rank_address: "host:port" where they come to.
        rank_key_file: the key shared with them; may be left out where they are on this host.
        max_length: tokens of prompt and answer together; None takes the model's own limit, but 8192 at most.
        exactness: "fast" uses any kernel; "exact" computes every row separately, so its bits depend on no other row.
        kernels: "auto" takes the native kernels on a CPU, where they were built, and Triton's on a GPU, where they can
            run; "torch" leaves both aside; "triton" is an error where they cannot run.
        num_threads: CPU threads; None takes torch's own choice. Never more than this process has cores, by its affinity
            and its container's quota, less what a drafter's process takes. torch has them only while the engine works.
        chat_template: a Jinja file, the template itself, or the name of one that many models use (chatml, llama3,
            zephyr), in place of the model's own.
        chat_template_kwargs: variables of the chat template, such as {"enable_thinking": False}, for every request.
        cache_bytes: memory for the keys and values of earlier texts, beside those of the present one, so that several
            conversations go on without being read again; 0: only the last one does. A draft model saves as many tokens
            in room of its own.
        pack_in_memory: pack the codes of a GGUF file in memory at every start; else they are kept in forerun's cache as
            they were packed, about as large as the file, and mapped at the next start. For the CPU's kernels.
        measures_speedup: time plain rounds now and then, so that the statistics say what drafting gains. They take 3 %
            of the time that a text is written in, and a moment after it.
    """

    target: str = BUILTIN_TARGET
    drafter: DrafterConfig = field(default_factory=automatic_drafter)
    dtype: DTypeName = setting("auto", "--dtype", help="What to compute in.")
    weights: WeightsName = setting(
        "stored", "--weights", "--quantization", help="int8 and int4 round the weights of linear layers on loading."
    )
    inputs: InputsName = setting(
        "int16", "--inputs", help="int8 rounds what a GGUF file's codes are multiplied with as llama.cpp does: faster."
    )
    device: str = setting("cpu", "--device", help="A torch device, such as cuda:0.")
    target_ranks: int = setting(
        1, "--target-ranks", "--tensor-parallel-size", help="Processes that share the target, each with a part of it."
    )
    remote_ranks: int = setting(0, "--remote-ranks", help="Those of them that other hosts run.")
    rank_address: str | None = setting(None, "--rank-address", help="HOST:PORT of this host that they come to.")
    rank_key_file: str | None = setting(None, "--rank-key-file", help="File with the key shared with them.")
    max_length: int | None = setting(
        None, "--max-length", "--max-model-len", "--ctx-size", "-c", help="Tokens of prompt and answer."
    )
    exactness: Exactness = setting("fast", "--exactness", help="exact computes each row alone.")
    kernels: KernelsName = setting(
        "auto", "--kernels",
        help="torch leaves the native CPU kernels and Triton's GPU kernels aside; triton insists on the latter.",
    )  # fmt: skip
    num_threads: int | None = setting(None, "--threads", "-t", help="CPU threads.")
    chat_template: str | None = setting(
        None, "--chat-template", "--chat-template-file",
        help="A Jinja file, the template itself, or chatml, llama3 or zephyr, in place of the model's own.",
    )  # fmt: skip
    chat_template_kwargs: Mapping[str, object] = setting(
        dict, "--chat-template-kwargs", "--default-chat-template-kwargs",
        help='The template\'s variables as a JSON object, such as \'{"enable_thinking": false}\'.',
    )  # fmt: skip
    cache_bytes: int = setting(
        SAVED_BYTES, "--cache-bytes",
        help="Memory for earlier conversations, such as 512MB or 2GiB; 0: only the last one is not read again.",
    )  # fmt: skip
    pack_in_memory: bool = setting(
        False, "--pack-in-memory", help="Pack a GGUF file's weights at every start, and keep them nowhere."
    )
    measures_speedup: bool = False

    def __post_init__(self) -> None:
        require(
            self.dtype not in get_args(WeightsName), f"dtype {self.dtype!r} is a format of weights: give it as weights"
        )
        read_fields(self)
        require(self.max_length is None or self.max_length >= 2, f"max_length {self.max_length} must be >= 2")
        require(
            0 <= self.cache_bytes <= 2**60,
            f"cache_bytes {self.cache_bytes} must lie in [0, 2**60] (0 keeps only the last text)",
        )
        require(1 <= self.target_ranks <= MAX_RANKS, f"target_ranks {self.target_ranks} must lie in [1, {MAX_RANKS}]")
        require(
            self.target_ranks == 1 or not isinstance(self.drafter, LayerSkip),
            "a target that several ranks share cannot draft for itself: take target_ranks 1, or another drafter",
        )
        require_remote_ranks(self)
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        read_device(self.device)  # raises for a paced device that cannot be read


def require_remote_ranks(config: EngineConfig) -> None:
    """Raise ConfigError for ranks of other hosts that cannot be."""
    remote, most = config.remote_ranks, config.target_ranks - 1
    require(
        0 <= remote <= most,
        f"remote_ranks {remote} must lie in [0, {most}]: of target_ranks {config.target_ranks} this process is one",
    )
    require(
        (remote > 0) == (config.rank_address is not None),
        "remote_ranks and rank_address go together: how many ranks come from other hosts, and where to",
    )
    require(
        config.rank_key_file is None or remote > 0, "a rank_key_file is of no use without remote_ranks: leave it out"
    )
