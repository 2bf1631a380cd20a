"""A conversation in the terminal; /quit ends it. What was said before is not computed again.

The built-in model goes on writing rather than answering. To talk, name an instruct model, and a smaller one of its kin:
    python examples/chat.py smollm2
    python examples/chat.py Qwen/Qwen2.5-1.5B-Instruct Qwen/Qwen2.5-0.5B-Instruct
"""

import sys

import forerun

PARAMS = forerun.SamplingParams(temperature=0.7, max_new_tokens=200, seed=1)


def main() -> None:
    messages: list[dict[str, str]] = []
    with forerun.load(*sys.argv[1:3]) as engine:
        is_chat_model = engine.tokenizer.has_chat_template
        for line in map(str.rstrip, sys.stdin):
            if line == "/quit":
                break
            messages.append({"role": "user", "content": line})
            answer = ""
            prompt = messages if is_chat_model else "\n".join(message["content"] for message in messages) + "\n"
            for step in engine.stream(prompt, PARAMS):
                print(step.text, end="", flush=True)
                answer += step.text
            messages.append({"role": "assistant", "content": answer})
            print()


if __name__ == "__main__":
    main()
