"""An agent on LangChain, with its model for chat completions."""

import json

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from scenario import MODEL, QUESTIONS, SYSTEM, weather

agent = create_agent(ChatOpenAI(model=MODEL), tools=[weather], system_prompt=SYSTEM)
messages = []
for question in QUESTIONS:
    asked = {"role": "user", "content": question}
    messages = agent.invoke({"messages": [*messages, asked]})["messages"]
    print(json.dumps([question, messages[-1].content]))
