"""The user's configuration: frozen dataclasses, checked when built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, get_args

from forerun.core.drafter_config import (
    BUILTIN_TARGET,
    MAX_RANKS,
    DrafterConfig,
    LayerSkip,
    automatic_drafter,
)
from forerun.core.errors import require
from forerun.core.field_types import read_fields, setting, settings
from forerun.core.grammar import Grammar
from forerun.core.model_spec import CacheFormat
from forerun.core.pace import read_device

DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64"]
WeightsName = Literal["stored", "int8", "int4"]
InputsName = Literal["int16", "int8"]
Exactness = Literal["fast", "exact"]
KernelsName = Literal["auto", "torch", "triton"]
AUTO_DEVICE: Final = "auto"
MOST_BIAS: Final = 1e38  # within float32
MOST_TEMPERATURE: Final = 1e4  # above it all tokens are equally likely in float32
MOST_PENALTY: Final = 1e4
MOST_LOGPROBS: Final = 20  # likeliest tokens per position, as in the OpenAI API
UNTIL_FULL: Final = -1  # generate until the context is full
SAVED_BYTES: Final = 512 * 10**6  # 22,000 tokens of SmolLM2, 4,000 of an 8B model; laptops have 8 GB or more
OF_THE_MODEL: Final = "[as in the model's generation_config.json]"
NUM_SEEDS: Final = 2**63  # as SamplingParams takes them
SEED_BYTES: Final = 8


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled and when generation stops. Only temperature 0 is greedy.

    Settings apply in the order grammar, logit_bias, repetition_penalty, frequency and presence penalty, temperature,
    top_k, top_p, min_p. This is transformers' order, and vLLM's except for min_p, which vLLM applies before top_k. Both
    keep all tokens tied with the last one of top_k; we keep exactly top_k, and among ties those with the lowest ids.

    Args:
        max_new_tokens: None means 256, or fewer if fewer fit; -1 as many as fit.
        logit_bias: added to the scores of these token ids.
        stop: texts before which the answer ends; empty ones are left out.
        stop_token_ids: tokens that end the answer, in addition to the model's own.
        seed: the same seed gives the same text; None draws a new one for each request.
        logprobs: return the log-probability of each token and of this many likeliest tokens at its position, 0 to 20;
            natural logarithms of the target's own distribution, before all settings above. None: none are returned.
            If set, a GPU does not run rounds on its own.
        prompt_logprobs: the same for the tokens of the prompt from the second on, in `Generation.prompt_logprobs`. The
            prompt is then read from its start, even if it is cached.
        grammar: the form of the answer. If set, a GPU does not run rounds on its own.
        max_thought_tokens: tokens of thoughts after which their closing mark is forced, up to 3 later if a character is
            incomplete; 0: no thoughts; None: no limit. It has an effect only where the marks of thoughts are known, see
            `Engine.stream`. If it can be reached, a GPU does not run rounds on its own.
    """

    max_new_tokens: int | None = setting(
        None,
        "--max-new-tokens",
        "--max-tokens",
        "-n",
        help="Tokens to write at most; -1: until the context is full [256, or as many as fit].",
    )
    temperature: float = setting(0.0, "--temperature", "--temp", help=f"0 is greedy. {OF_THE_MODEL}")
    top_k: int = setting(0, "--top-k", help=f"Keep the k likeliest; 0 keeps all. {OF_THE_MODEL}")
    top_p: float = setting(1.0, "--top-p", help=f"Keep the likeliest up to this probability. {OF_THE_MODEL}")
    min_p: float = setting(0.0, "--min-p", help=f"Drop tokens below this share of the best probability. {OF_THE_MODEL}")
    repetition_penalty: float = setting(
        1.0, "--repetition-penalty", "--repeat-penalty", help=f"Above 1: fewer repeats; 1: off. {OF_THE_MODEL}"
    )
    presence_penalty: float = setting(0.0, "--presence-penalty", help="Subtracted from tokens written before.")
    frequency_penalty: float = setting(0.0, "--frequency-penalty", help="Subtracted each time a token was written.")
    logit_bias: Mapping[int, float] = setting(
        dict, "--logit-bias", help="ID=VALUE, added to a token's score; repeatable."
    )
    stop: tuple[str, ...] = setting((), "--stop", help="End before this text; repeatable.")
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = setting(False, "--ignore-eos", help="Go on after the model's own end of text.")
    seed: int | None = setting(None, "--seed", "-s", help="Same seed, same text.")
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    max_thought_tokens: int | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        require(
            self.grammar is None or not self.ignore_eos,
            "ignore_eos continues after the answer's end, where a grammar allows no token: leave one of them out",
        )
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
        object.__setattr__(self, "stop", tuple(filter(None, self.stop)))
        require(
            self.seed is None or 0 <= self.seed < 2**63,
            f"seed {self.seed} must lie in [0, 2**63); left out, every request draws a fresh one",
        )
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            require(
                number is None or 0 <= number <= MOST_LOGPROBS,
                f"{name} {number} must lie in [0, {MOST_LOGPROBS}], or be None",
            )
        require(
            self.max_thought_tokens is None or self.max_thought_tokens >= 0,
            f"max_thought_tokens {self.max_thought_tokens} must be >= 0, or None for no limit",
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether a filter removes tokens before sampling."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def shapes_scores(self) -> bool:
        """Whether scores are changed by more than the temperature."""
        return self.is_filtered or self.has_penalties or len(self.logit_bias) > 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: a target, where it runs, and its drafter.

    Args:
        target: checkpoint folder, GGUF file, hub name (org/model, or org/model:Q4_K_M), or the built-in target.
        drafter: the drafter; by default the fastest of several that are cheap to load.
        dtype: the compute dtype. "auto" takes the checkpoint's own, unless the CPU would emulate it; with weights of 8
            or 4 bits a CPU takes bfloat16.
        weights: format of the linear layers of target and draft: as stored, or rounded on loading; the text is that of
            the rounded target.
        inputs: how the CPU's kernels round the inputs that are multiplied with a GGUF file's codes: to 16-bit integers,
            or to 8-bit ones, as llama.cpp does. 8 bits are faster for several rows, and the text is that of the rounded
            target: about 4 in 100 of SmolLM2's likeliest tokens differ. Drafts always use 8 bits.
        cache: format of keys and values: the compute dtype, or "int8", which rounds each row of a head to 8 bits with
            its own scale when it is written. Every reader reads the rounded row, so the text is that of the rounded
            target with every drafter. A draft model on the CPU takes the same; Triton's kernels and draft heads do not.
        device: a torch device, such as "cpu" or "cuda:0"; "auto" is a working GPU with room for the model, else the
            CPU; "paced:target=13ms;draft=2ms" slows passes, see core/pace.
        target_ranks: processes that share the target, each with a part of every layer, on as many GPUs, starting at
            `device`, or on the CPU.
        remote_ranks: how many of them run on other hosts, see `forerun worker --role target`. CPUs then use torch's
            kernels.
        rank_address: "host:port" that remote ranks connect to.
        rank_key_file: the key shared with remote ranks; optional if they are on this host.
        max_length: most tokens of prompt and answer together; None takes the model's own limit, but at most 8192.
            More than the model's positions is cut to them, with a warning, as in llama.cpp.
        exactness: "fast" uses any kernel; "exact" computes every row separately, so its bits depend on no other row.
        kernels: "auto" uses the native kernels on a CPU if they were built, and Triton's on a GPU if they can run;
            "torch" uses neither; "triton" is an error if they cannot run.
        num_threads: CPU threads; None takes torch's default. Never more than the cores of this process, by its affinity
            and its container's quota, minus those of a drafter's process. Between requests torch has its former number.
        chat_template: a Jinja file, the template itself, or the name of a common one (chatml, llama3, zephyr), instead
            of the model's own.
        chat_template_kwargs: variables of the chat template, such as {"enable_thinking": False}, for every request.
        cache_bytes: memory for the keys and values of earlier texts, in addition to the current one, so that several
            conversations can continue without being read again; 0: only the last one. A draft model saves as many
            tokens in additional memory.
        pack_in_memory: pack the codes of a GGUF file in memory at every start; otherwise packed codes, about as large
            as the file, are saved in forerun's cache and mapped at the next start. For the CPU's kernels.
        saved_prompt_bytes: disk space for the keys and values of long texts, in forerun's cache, so that they are not
            read again after a restart; 0: none. `Engine.save_prompts` saves them, and a server calls it while it is
            idle. Not for models with a state, nor for a target on several ranks.
        measures_speedup: time plain rounds occasionally, so that the statistics include the speed-up. They take 3 % of
            the time of a text, and a moment after it.
    """

    target: str = BUILTIN_TARGET
    drafter: DrafterConfig = field(default_factory=automatic_drafter)
    dtype: DTypeName = setting("auto", "--dtype", help="The compute dtype.")
    weights: WeightsName = setting(
        "stored", "--weights", "--quantization", help="int8 and int4 round the weights of linear layers on loading."
    )
    inputs: InputsName = setting(
        "int16", "--inputs", help="int8 rounds the inputs of GGUF weights to 8 bits, as llama.cpp does: faster."
    )
    cache: CacheFormat = setting(
        "model",
        "--cache",
        help="Keys and values: in the compute dtype, or in int8, which takes about half the memory of bfloat16.",
    )
    device: str = setting("cpu", "--device", help="A torch device, such as cuda:0.")
    target_ranks: int = setting(
        1, "--target-ranks", "--tensor-parallel-size", help="Processes that share the target, each with a part of it."
    )
    remote_ranks: int = setting(0, "--remote-ranks", help="How many of these run on other hosts.")
    rank_address: str | None = setting(None, "--rank-address", help="HOST:PORT of this host that these connect to.")
    rank_key_file: str | None = setting(None, "--rank-key-file", help="File with the key shared with these ranks.")
    max_length: int | None = setting(
        None,
        "--max-length",
        "--max-model-len",
        "--ctx-size",
        "-c",
        help="Tokens of prompt and answer, at most the model's positions.",
    )
    exactness: Exactness = setting("fast", "--exactness", help="exact computes each row separately.")
    kernels: KernelsName = setting(
        "auto",
        "--kernels",
        help="torch: neither the native CPU kernels nor Triton's GPU kernels; triton: an error if they cannot run.",
    )
    num_threads: int | None = setting(None, "--threads", "-t", help="CPU threads.")
    chat_template: str | None = setting(
        None,
        "--chat-template",
        "--chat-template-file",
        help="A Jinja file, the template itself, or chatml, llama3 or zephyr, in place of the model's own.",
    )
    chat_template_kwargs: Mapping[str, object] = setting(
        dict,
        "--chat-template-kwargs",
        "--default-chat-template-kwargs",
        help="The template's variables as a JSON object, such as '{\"enable_thinking\": false}'.",
    )
    cache_bytes: int = setting(
        SAVED_BYTES,
        "--cache-bytes",
        help="Memory for earlier conversations, such as 512MB or 2GiB; 0: keep only the last one.",
    )
    pack_in_memory: bool = setting(
        False, "--pack-in-memory", help="Pack a GGUF file's weights at every start, and do not save them."
    )
    saved_prompt_bytes: int = 0
    measures_speedup: bool = False

    def __post_init__(self) -> None:
        require(self.dtype not in get_args(WeightsName), f"dtype {self.dtype!r} is a weight format: set weights to it")
        read_fields(self)
        require(self.max_length is None or self.max_length >= 2, f"max_length {self.max_length} must be >= 2")
        require(
            0 <= self.cache_bytes <= 2**60,
            f"cache_bytes {self.cache_bytes} must lie in [0, 2**60] (0 keeps only the last text)",
        )
        require(
            0 <= self.saved_prompt_bytes <= 2**60,
            f"saved_prompt_bytes {self.saved_prompt_bytes} must lie in [0, 2**60] (0 saves none)",
        )
        require(1 <= self.target_ranks <= MAX_RANKS, f"target_ranks {self.target_ranks} must lie in [1, {MAX_RANKS}]")
        require(
            self.target_ranks == 1 or not isinstance(self.drafter, LayerSkip) or self.drafter.weights == "plain",
            "a target that several ranks share drafts with its own weights: leave out the drafter's weights, or take "
            "target_ranks 1",
        )
        require_remote_ranks(self)
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        read_device(self.device)  # raises for a paced device that cannot be read


def require_remote_ranks(config: EngineConfig) -> None:
    """Raise ConfigError for invalid settings of ranks on other hosts."""
    remote = config.remote_ranks
    most = config.target_ranks - 1
    require(
        0 <= remote <= most,
        f"remote_ranks {remote} must lie in [0, {most}]: this process is one of target_ranks {config.target_ranks}",
    )
    require(
        (remote > 0) == (config.rank_address is not None),
        "remote_ranks and rank_address go together: how many ranks run on other hosts, and where they connect to",
    )
    require(
        config.rank_key_file is None or remote > 0, "a rank_key_file has no effect without remote_ranks: leave it out"
    )


def seed_of_text(seed: int, number: int) -> int:
    """The seed of one of several texts: the seed itself for the first, a hash of seed and number for the others.

    With seed + number, text 1 of seed 5 would be text 0 of seed 6, so that two requests would share texts.
    """
    if number == 0:
        return seed
    digest = blake2b(f"{seed}:{number}".encode(), digest_size=SEED_BYTES).digest()
    return int.from_bytes(digest, "little") % NUM_SEEDS
