"""An edit of a file, which is its own prediction: what stays is looked up in it, and no token of the answer changes.

Needs a server: ./forerun serve smollm2
"""

import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
FILE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
"""
TASK = f"Rename the class to Wallet. Answer with the whole file.\n\n```python\n{FILE}```"


def main() -> None:
    texts = []
    with OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": TASK}]
        for prediction in (None, {"type": "content", "content": FILE}):
            answer = client.chat.completions.create(
                model=model, messages=messages, max_tokens=120, temperature=0, prediction=prediction
            )
            texts.append(answer.choices[0].message.content)
            num_predicted = answer.usage.completion_tokens_details.accepted_prediction_tokens
            print(f"{answer.usage.completion_tokens} tokens, of which {num_predicted} were predicted")
    print("same text:", texts[0] == texts[1])


if __name__ == "__main__":
    main()
