"""The openai SDK against rules (`--answers`): moderations, log probabilities, several choices, structured output, broken arguments."""

import json
import math

import openai

RULES = """
records:
- match: any
  answer: {verdict: openai-moderation, categories: [hate], score: 0.9, unsafe: {contains: bomb}}
- match: any
  answer: {verdict: embedding, dimensions: 8}
- match: {model: guard}
  answer: {verdict: yes-no, score: 0.8, unsafe: {contains: bomb}}
- match: {contains: schema}
  answer: {schema: request}
- match: {contains: broken}
  answer: {semantic: bad-arguments}
- match: {contains: parts}
  answer: {parts: [{text: One}, {after: 2ms, text: " two"}]}
"""

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="made-up", max_retries=0)


def ask(url, words, **more):
    return client(url).chat.completions.create(model=more.pop("model", "m"), messages=[{"role": "user", "content": words}], **more)


def moderations_have_categories_and_scores(url):
    moderation = client(url).moderations.create(model="omni-moderation-latest", input=["tea", "a bomb"])
    assert [result.flagged for result in moderation.results] == [False, True]
    assert moderation.results[1].categories.hate and not moderation.results[1].categories.violence
    assert moderation.results[1].category_scores.hate == 0.9


def a_verdict_has_probabilities_for_each_choice(url):
    answer = ask(url, "a bomb", model="guard", n=2, logprobs=True, top_logprobs=2, max_tokens=1)
    assert [choice.message.content for choice in answer.choices] == ["Yes", "Yes"]
    top = answer.choices[1].logprobs.content[0].top_logprobs
    assert [(entry.token, round(math.exp(entry.logprob), 6)) for entry in top] == [("Yes", 0.8), ("No", 0.2)]


def structured_output_parses(url):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    assert isinstance(json.loads(ask(url, "schema", response_format=form).choices[0].message.content)["age"], int)


def broken_arguments_arrive_as_they_are(url):
    for stream in (False, True):
        answer = ask(url, "broken", tools=[TOOL], stream=stream)
        if stream:
            deltas = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or []]
            arguments = "".join(call.function.arguments or "" for call in deltas)
        else:
            arguments = answer.choices[0].message.tool_calls[0].function.arguments
        try:
            json.loads(arguments)
        except ValueError:
            continue
        raise AssertionError(f"{arguments} is JSON")


def parts_are_chunks(url):
    texts = [chunk.choices[0].delta.content for chunk in ask(url, "parts", stream=True)]
    assert [text for text in texts if text] == ["One", " two"], texts


def embeddings_are_unpacked(url):
    vectors = client(url).embeddings.create(model="m", input=["tea", "coffee", "tea"]).data
    assert len(vectors[0].embedding) == 8 and vectors[0].embedding == vectors[2].embedding != vectors[1].embedding


ALL = [
    moderations_have_categories_and_scores,
    a_verdict_has_probabilities_for_each_choice,
    structured_output_parses,
    broken_arguments_arrive_as_they_are,
    parts_are_chunks,
    embeddings_are_unpacked,
]
