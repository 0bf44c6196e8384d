"""An agent on Pydantic AI, with its model for chat completions."""

import json

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from scenario import MODEL, QUESTIONS, SYSTEM, weather

agent = Agent(OpenAIChatModel(MODEL), instructions=SYSTEM, tools=[weather])
history = []
for question in QUESTIONS:
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    print(json.dumps([question, result.output]))
