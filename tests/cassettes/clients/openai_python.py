"""An agent on the openai SDK for Python: chat completions, received whole."""

from functools import partial

import openai
from scenario import MODEL
from tool_loop import ask_all

ask_all(partial(openai.OpenAI().chat.completions.create, model=MODEL))
