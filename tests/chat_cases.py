"""Conversations for the chat template tests: name -> arguments of a rendering."""

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city <now> & later, in °C",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}},
}
USER = {"role": "user", "content": "  Hello, <b>you</b> & 'me'  "}

CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER]},
    "no generation prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}},
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "turns": {
        "messages": [
            USER,
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."},
            {"role": "user", "content": "Again"},
        ]
    },
    "reasoning": {
        "messages": [USER, {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}],
        "add_generation_prompt": False,
    },
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            }
        ]
    },
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "tools and system": {
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "tools": [WEATHER],
    },
    "tool call": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": '{"t": 3}'},
            {"role": "tool", "content": "rain"},
        ],
        "tools": [WEATHER],
    },
    "unicode": {"messages": [{"role": "user", "content": "e\u0301 🎉 \u200b 漢字 <|im_end|>"}]},
}
