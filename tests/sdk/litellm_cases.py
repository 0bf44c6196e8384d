"""litellm against `vllm-vcr play`: chat, streaming, text completion, an error's class. Outside CI, because litellm is large.

Usage: pip install litellm; litellm_cases.py BINARY
"""

import sys
from pathlib import Path

import litellm
import servers

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def common(url):
    return {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": 16, "num_retries": 0, "timeout": 60}


def chat(url):
    answer = litellm.completion(model="hosted_vllm/smollm2-135m", messages=MESSAGES, **common(url))
    assert answer.choices[0].message.content and answer.usage.completion_tokens > 0, answer


def chat_stream(url):
    chunks = list(litellm.completion(model="hosted_vllm/smollm2-135m", messages=MESSAGES, stream=True, **common(url)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length"), chunks[-1]


def text(url):
    answer = litellm.text_completion(model="text-completion-openai/smollm2-135m", prompt="The capital", **common(url))
    assert answer.choices[0].text and answer.usage.completion_tokens > 0, answer


def unknown_model(url):
    try:
        litellm.completion(model="hosted_vllm/no-such-model", messages=MESSAGES, **common(url))
    except litellm.NotFoundError as error:
        assert "no-such-model" in str(error)
        return
    raise AssertionError("an unknown model was accepted")


def main(binary):
    with servers.play(binary, "--instant", "--served-model-name", "smollm2-135m") as play:
        for case in (chat, chat_stream, text, unknown_model):
            case(play.url)
            print(f"passed {case.__name__}")
    return play.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
