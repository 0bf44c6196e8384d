"""An agent on the OpenAI Agents SDK: the responses API, as it is by default."""

import json

from agents import Agent, Runner, function_tool, set_tracing_disabled
from scenario import MODEL, QUESTIONS, SYSTEM, weather

# Traces go to OpenAI's own server, whatever the base URL is.
set_tracing_disabled(True)

agent = Agent(name="weather", instructions=SYSTEM, model=MODEL, tools=[function_tool(weather)])
items = []
for question in QUESTIONS:
    result = Runner.run_sync(agent, [*items, {"role": "user", "content": question}])
    items = result.to_input_list()
    print(json.dumps([question, result.final_output]))
