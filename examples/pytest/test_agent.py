"""Twelve tests of a small agent with a tool, each with its own cassette."""

import json

import pytest

CITIES = ["London", "Paris", "Rome", "Oslo", "Lima", "Cairo"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(client, messages, **more):
    return client.chat.completions.create(model="m", messages=messages, **more).choices[0].message


def agent(client, city):
    messages = [
        {"role": "system", "content": "You are a weather bot."},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    while True:
        message = ask(client, messages, tools=[WEATHER])
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            assert json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "15 degrees"})


@pytest.mark.parametrize("city", CITIES)
def test_weather(client, city):
    assert "15 degrees" in agent(client, city)


@pytest.mark.parametrize("city", CITIES)
def test_stream(client, city):
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": f"rainy in {city}"}], stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert f"rainy in {city}" in text
