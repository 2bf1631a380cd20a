"""A request that cannot be answered is refused before anything is computed, and the message says why."""

from collections.abc import Iterator

import pytest

from forerun import ConfigError, Engine, EngineConfig, NoDrafter, SamplingParams


@pytest.fixture(scope="module")
def engine(target: str) -> Iterator[Engine]:
    with Engine(EngineConfig(target=target, drafter=NoDrafter(), num_threads=1, max_length=64)) as engine:
        yield engine


def test_a_models_name_is_no_config() -> None:
    with pytest.raises(ConfigError, match=r"'builtin' is not an EngineConfig: write forerun.load\('builtin'\)"):
        Engine("builtin")  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"temperature": 1}, {}, 0.5])
def test_what_is_no_sampling_params_is_refused(engine: Engine, params: object) -> None:
    with pytest.raises(ConfigError, match=r"must be SamplingParams: write SamplingParams\(temperature=1.0\)"):
        engine.generate("x", params)  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 320, 99_999_999])
def test_a_bias_on_a_token_that_the_model_lacks_is_refused(engine: Engine, token_id: int) -> None:
    with pytest.raises(ConfigError, match=f"logit_bias names token id {token_id}; .* has ids 0 to 319"):
        engine.generate("x", SamplingParams(logit_bias={5: 1.0, token_id: 1.0}))
    engine.generate("x", SamplingParams(logit_bias={0: 1.0, 319: 1.0}, max_new_tokens=1))


def test_chat_messages_are_put_in_the_template_given_with_the_variables_of_engine_and_request(target: str) -> None:
    template = "{{ mood }} {{ messages[0]['content'] }} {{ enable_thinking }}"
    config = EngineConfig(
        target=target,
        drafter=NoDrafter(),
        num_threads=1,
        max_length=64,
        chat_template=template,
        chat_template_kwargs={"mood": "calm", "enable_thinking": True},
    )
    with Engine(config) as engine:
        question = [{"role": "user", "content": "fox"}]
        params = SamplingParams(max_new_tokens=3)
        asked = engine.encode(question, chat_template_kwargs={"enable_thinking": False})
        assert engine.tokenizer.decode(engine.encode(question)) == "calm fox True"
        assert engine.tokenizer.decode(asked) == "calm fox False"
        answer = engine.generate(question, params, chat_template_kwargs={"enable_thinking": False})
        assert answer.token_ids == engine.generate(asked, params).token_ids


@pytest.mark.parametrize("template", ["{% for %}", "no-such-template"])
def test_a_template_that_is_none_is_refused_before_the_weights_are_read(target: str, template: str) -> None:
    with pytest.raises(ConfigError, match=r"chat.template"):
        Engine(EngineConfig(target=target, chat_template=template), on_progress=lambda *_: pytest.fail("weights read"))


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc")])
def test_bytes_are_not_taken_for_token_ids(engine: Engine, prompt: bytes) -> None:
    with pytest.raises(ConfigError, match="a prompt of bytes is not a text: decode it first"):
        engine.generate(prompt)


def test_half_a_character_is_refused_in_a_prompt_and_in_a_message(engine: Engine) -> None:
    for prompt in ("caf\udce9", [{"role": "user", "content": "caf\udce9"}]):
        with pytest.raises(ConfigError, match=r"'\\udce9' at place \d+, which is not a character: read .* as UTF-8"):
            engine.generate(prompt)
