"""An agent on LiteLLM, which takes any server that speaks OpenAI's API for `openai/MODEL`."""

import os
from functools import partial

# Prices of models are not asked for at its server.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from scenario import MODEL
from tool_loop import ask_all

ask_all(partial(litellm.completion, model=f"openai/{MODEL}"))
