"""The clients of tests/fixtures/clients: their requests, their headers, and calls their tools take."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).parents[1] / "fixtures" / "clients"
MODEL = "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit"
CODE = "def area(r):\n    # π × r²\n\tif r < 0:\n        return None  # &amp; stays, <b> &\n    return 4\n"
FROM_NODE = {"Accept-Language": "*", "Sec-Fetch-Mode": "cors"}
ANY = {"Accept": "*/*"}
JSON = {"Accept": "application/json"}
PLAIN_CODINGS = {"Accept-Encoding": "gzip, deflate"}
ALL_CODINGS = {"Accept-Encoding": "gzip, deflate, br, zstd"}

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Agent:
    """`calls`: what a model might ask of its tools at its first turn. `asks`: part of that turn's last
    text."""

    name: str
    headers: dict[str, str]
    asks: str
    calls: Calls = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """A request in the middle of its run, as it was sent."""
        body: dict[str, Any] = json.loads((CLIENTS / f"{self.name}.json").read_text("utf-8"))
        return body

    @property
    def first_turn(self) -> dict[str, Any]:
        """The request before any answer."""
        body = self.body
        roles = [message["role"] for message in body["messages"]]
        if "assistant" in roles and self.name != "aider":
            body["messages"] = body["messages"][: roles.index("assistant")]
        return body

    def declared(self, name: str) -> dict[str, Any]:
        """The parameters of one of its tools."""
        [tool] = [tool["function"] for tool in self.body["tools"] if tool["function"]["name"] == name]
        return tool.get("parameters") or {}


def agent(name: str, agent_name: str, accept: dict[str, str], asks: str, *calls: Any, **more: str) -> Agent:
    headers = {"User-Agent": agent_name, **accept, **more}
    return Agent(name, headers, asks, list(calls))


SDK, JS = {**JSON, **PLAIN_CODINGS}, {**JSON, **PLAIN_CODINGS, **FROM_NODE}
EDITS = [
    {"oldText": "  return 4", "newText": "  return 3.14 * r * r"},
    {"oldText": "é\n", "newText": '\t"é"\n'},
]
AGENTS = [
    agent(
        "openai_python",
        "OpenAI/Python 3.57.0",
        SDK,
        "the weather in Zürich",
        ("write_file", {"path": "area.py", "text": CODE}),
        ("get_weather", {"city": "Zürich"}),
        **{"X-Stainless-Lang": "python"},
    ),
    agent(
        "openai_python_explicit_nulls",
        "OpenAI/Python 3.57.0",
        SDK,
        "Weather in Oslo",
        ("get_weather", {}),
    ),
    agent(
        "ai_sdk",
        "ai-sdk-openai-compatible/3.0.92 ai-sdk/provider-utils/5.0.81 runtime/node.js/22",
        {**ANY, **PLAIN_CODINGS, **FROM_NODE},
        "weather in Berlin",
        ("get_weather", {"city": "Berlin", "days": 3}),
        ("write_file", {"path": "area.py", "text": CODE}),
    ),
    agent("langchain", "OpenAI/Python 3.57.0", SDK, "in Lyon", ("get_weather", {"city": "Lyon", "days": 2})),
    agent(
        "litellm",
        "OpenAI/Python 3.57.0",
        SDK,
        "in Rome and in Bari",
        ("get_weather", {"city": "Rome"}),
        ("get_weather", {"city": "Bari", "days": 1}),
    ),
    agent(
        "pydantic_ai",
        "pydantic-ai/2.66.0",
        SDK,
        "in Kyōto",
        ("get_weather", {"city": "Kyōto", "days": 1}),
        ("write_file", {"path": "null", "text": "007"}),
    ),
    agent(
        "openai_agents",
        "Agents/Python 0.24.0",
        SDK,
        "Write area.py",
        ("write_file", {"path": "area.py", "text": CODE}),
        ("get_weather", {"city": "true", "days": 2}),
    ),
    agent(
        "opencode",
        "opencode/1.18.33 ai-sdk/provider-utils/5.0.81 runtime/bun/1.3.0",
        {**ANY, **ALL_CODINGS},
        "test in tests/test_area.py",
        ("read", {"filePath": "/home/ada/project/area.py", "offset": 0, "limit": 2000}),
        (
            "todowrite",
            {"todos": [{"content": "fix", "status": "pending", "priority": "high"}]},
        ),
        ("edit", {"filePath": "/a.py", "oldString": CODE, "newString": "", "replaceAll": True}),
        **{"x-session-id": "ses_1f2e3d", "x-session-affinity": "ses_1f2e3d"},
    ),
    agent(
        "cline",
        "ai-sdk/openai-compatible/3.0.37 ai-sdk/provider-utils/5.0.81 runtime/bun/1.3.0",
        {**ANY, **ALL_CODINGS},
        '<user_input mode="act">',
        ("run_commands", {"commands": ["pytest -q", 'git log --format="%h"']}),
        ("read_files", {"files": [{"path": "/a.py", "start_line": None, "end_line": 12}]}),
        ("editor", {"path": "/a.py", "old_text": "    return 4", "new_text": CODE, "insert_line": 7}),
        ("editor", {"path": "/a.py", "old_text": None, "new_text": "", "insert_line": None}),
        ("team_status", {}),
        ("submit_and_exit", {"summary": "Fixed.", "verified": True}),
    ),
    agent(
        "pi",
        "OpenAI/JS 6.26.0",
        JS,
        "Make two edits",
        ("edit", {"path": "area.py", "edits": EDITS}),
        ("bash", {"command": "pytest -q", "timeout": 12.5}),
        **{"X-Stainless-Lang": "js"},
    ),
    agent(
        "qwen_code",
        "QwenCode/0.24.4 (linux; x64)",
        JS,
        "Reminders: none.",
        ("read_file", {"file_path": "/a.py", "offset": None, "limit": 40, "pages": "1-5"}),
        ("list_agents", {}),
        ("tool_call", {"name": "edit", "arguments": {"file_path": "/a.py", "new_string": CODE}}),
        ("run_shell_command", {"command": "ls", "is_background": False, "timeout": 1000}),
        **{"X-Stainless-Lang": "js"},
    ),
    agent(
        "continue",
        "ls/JS 5.23.2",
        {**JSON, "Accept-Encoding": "gzip, deflate, br"},
        "Fix the failing test",
        ("MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "    a", "new_string": CODE}]}),
        ("Bash", {"command": "pytest -q", "timeout": 30}),
        ("Exit", {}),
    ),
    agent("aider", "OpenAI/Python 2.20.0", SDK, "Fix the failing test"),
    agent(
        "opencode_title",
        "opencode/1.18.33 ai-sdk/provider-utils/5.0.81 runtime/bun/1.3.0",
        {**ANY, **ALL_CODINGS},
        "test in tests/test_area.py",
    ),
]
BY_NAME = {one.name: one for one in AGENTS}


def hermes(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def xml(name: str, arguments: dict[str, Any]) -> str:
    values = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in arguments.items()
    ]
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def qwen_code_at_full_size() -> dict[str, Any]:
    """Qwen Code's first turn as long as it really is: a system prompt of 27,800 characters, a first user turn
    of 9,500, 14 tools of 39,189, `agent` alone 14,410; `max_tokens` 32,768 whatever the model."""
    body = copy.deepcopy(BY_NAME["qwen_code"].first_turn)
    system, user = body["messages"]
    system["content"] += filler(27_800 - len(system["content"]))
    user["content"][0]["text"] += filler(9_500 - sum(len(part["text"]) for part in user["content"]))
    functions = [tool["function"] for tool in body["tools"]]
    sizes = {"agent": 14_410}
    rest = (39_189 - 14_410) // (len(functions) - 1)
    for function in functions:
        wanted = sizes.get(function["name"], rest)
        function["description"] += filler(
            wanted - len(json.dumps({"type": "function", "function": function}))
        )
    return body


def filler(length: int) -> str:
    """Prose of a prompt, as long as asked."""
    sentence = " When in doubt, read the file first; never guess what a function does."
    return (sentence * (length // len(sentence) + 1))[: max(0, length)]
