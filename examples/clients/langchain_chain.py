"""A LangChain chain, whole and streamed: `.venv/bin/pip install langchain-openai`.

Needs a server: ./forerun serve smollm2
"""

import os

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("FORERUN_MODEL", "smollm2")


def main() -> None:
    model = ChatOpenAI(
        base_url=BASE_URL,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=MODEL,
        max_tokens=60,
        seed=1,
        extra_body={"top_k": 40},  # what OpenAI does not have
    )
    prompt = ChatPromptTemplate.from_messages([("system", "You translate into {language}."), ("human", "{text}")])
    chain = prompt | model | StrOutputParser()
    asked = {"language": "French", "text": "The water is cold today."}
    pieces = []
    for piece in chain.stream(asked):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print("\nsame text when asked for whole:", chain.invoke(asked) == "".join(pieces))


if __name__ == "__main__":
    main()
