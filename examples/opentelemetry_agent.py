"""An agent that is recorded through its telemetry. Any agent with gen_ai spans will do; the spans of this one are made by hand.

pip install 'rawko-state[opentelemetry]'
python examples/opentelemetry_agent.py FOLDER
"""

from __future__ import annotations

import json
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import rawko_state
from rawko_state.integrations.opentelemetry import RawkoSpanExporter


def said(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def main(folder: str) -> None:
    store = rawko_state.open(folder)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(RawkoSpanExporter(store)))
    tracer = provider.get_tracer("example")
    about = {"gen_ai.conversation.id": "conversation-1", "gen_ai.agent.name": "developer"}
    with tracer.start_as_current_span("invoke_agent", attributes={**about, "gen_ai.operation.name": "invoke_agent"}):
        with tracer.start_as_current_span("chat", attributes={**about, "gen_ai.operation.name": "chat"}) as chat:
            chat.set_attribute("gen_ai.input.messages", said("user", "Fix the login bug"))
            chat.set_attribute("gen_ai.output.messages", said("assistant", "The token check ignores clock skew."))
            chat.set_attribute("gen_ai.response.model", "gpt-5")
        print("while it runs:", [task.status for task in store.history(rawko_state.TaskFilter())])
    for task in store.history(rawko_state.TaskFilter()):
        print(f"{task.request}: {task.status}, {task.turns} turn")


if __name__ == "__main__":
    main(sys.argv[1])
