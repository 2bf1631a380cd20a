"""An answer as it comes, through the openai client, and what drafting brought. Needs a server: ./forerun serve smollm2

OPENAI_BASE_URL and OPENAI_API_KEY name another one than that of this machine.
"""

import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
QUESTION = "Why is the sky blue? Answer in two sentences."


def main() -> None:
    with OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=120,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:  # one for each verified round, with all its tokens
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    usage = chunk.usage.to_dict()
    drafted = usage["forerun"]
    print(
        f"\n\n{usage['completion_tokens']} tokens, {drafted['tokens_per_round']:.2f} a round, drafter "
        f"{drafted['drafter']}, {usage['prompt_tokens_details']['cached_tokens']} prompt tokens kept from before"
    )


if __name__ == "__main__":
    main()
