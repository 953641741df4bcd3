"""The OpenAI SDK, real processes, real MLX decoding: `start --local`, and gateway and daemon apart."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.cli.processes import SECONDS, Running
from tests.e2e.processes import Gateway

MODEL = "acme/qwen3-tiny"
FOLDER = Path(__file__).parents[1] / "fixtures" / "models" / "tiny-qwen3"
END_TOKENS = json.loads((FOLDER / "generation_config.json").read_text("utf-8"))["eos_token_id"]
DIALOGUES = {d["id"]: d for d in json.loads((FOLDER / "dialogues.json").read_text("utf-8"))}


@dataclass
class Served:
    url: str
    daemon: Running
    client: OpenAI

    def status(self) -> dict[str, Any]:
        """The status document, asked for directly: quicker than a command."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(str(self.daemon.home / "control.sock"))
            connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        document: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return document

    def until(self, fact: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first status document of which `fact` is true."""
        deadline = time.monotonic() + SECONDS
        while not fact(status := self.status()):
            assert time.monotonic() < deadline, json.dumps(status, indent=1)
            time.sleep(0.05)
        return status

    def endless(self) -> openai.Stream[ChatCompletionChunk]:
        """An answer whose end token can't come."""
        return self.client.chat.completions.create(
            model=MODEL,
            messages=DIALOGUES["tides"]["messages"],
            stream=True,
            logit_bias=dict.fromkeys(END_TOKENS, -100),
        )


@pytest.fixture(scope="module", params=["local", "two processes"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sdk")
    arguments = ["--model", f"{MODEL}={FOLDER}"]
    with ExitStack() as stack:
        if request.param == "local":
            daemon = stack.enter_context(
                Running(folder / "daemon", "start", "--local", "--port", "0", *arguments)
            )
            url = daemon.wait_for("ready: ").split()[1].removesuffix("/v1")
        else:
            gateway = stack.enter_context(Gateway(folder / "gateway")).ready()
            link = f"ws://127.0.0.1:{gateway.port}"
            daemon = stack.enter_context(Running(folder / "daemon", "start", "--gateway", link, *arguments))
            daemon.wait_for("ready: ")
            url = gateway.url
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        yield Served(url, daemon, stack.enter_context(client))


def ask(client: OpenAI, dialogue: str, **fields: Any) -> ChatCompletion:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": DIALOGUES[dialogue]["messages"], "temperature": 0} | fields
    )


def stream(client: OpenAI, dialogue: str, **fields: Any) -> list[ChatCompletionChunk]:
    return list(ask(client, dialogue, stream=True, **fields))  # type: ignore[arg-type]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def raw(
    served: Served, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(f"{served.url}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_buffered(served: Served) -> None:
    answer = ask(served.client, "capital")
    assert answer.choices[0].message.content == "Paris is the capital of France."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed(served: Served) -> None:
    chunks = stream(served.client, "capital")
    assert text_of(chunks) == "Paris is the capital of France."
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_only_where_it_is_asked_for(served: Served) -> None:
    chunks = stream(served.client, "capital", stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(served.client, "capital").usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_stop_strings(served: Served) -> None:
    for stop in ("STOP", ["STOP", "never"]):
        answer = ask(served.client, "stopword", stop=stop)
        assert answer.choices[0].message.content == "alpha, beta "
        assert answer.choices[0].finish_reason == "stop"
        assert text_of(stream(served.client, "stopword", stop=stop)) == "alpha, beta "


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(served: Served, field: str) -> None:
    answer = ask(served.client, "lighthouse", **{field: 7})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    chunks = stream(served.client, "lighthouse", **{field: 7})
    assert text_of(chunks) == answer.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_seed_repeats_an_answer(served: Served) -> None:
    hot = {"temperature": 1.9, "max_tokens": 24}
    answers = [ask(served.client, "tides", seed=7, **hot).choices[0].message.content for _ in range(2)]
    assert answers[0] == answers[1]
    others = {ask(served.client, "tides", seed=seed, **hot).choices[0].message.content for seed in range(4)}
    assert len(others) > 1


@pytest.mark.parametrize("dialogue", ["emoji", "greetings", "poem"])
def test_code_points_arrive_whole(served: Served, dialogue: str) -> None:
    expected = DIALOGUES[dialogue]["raw"]
    assert ask(served.client, dialogue).choices[0].message.content == expected
    chunks = stream(served.client, dialogue)
    assert text_of(chunks) == expected
    assert "\ufffd" not in text_of(chunks)


def test_reasoning(served: Served) -> None:
    hidden = ask(served.client, "spiders")
    assert hidden.choices[0].message.content == "Three spiders have 24 legs."
    assert hidden.usage is not None
    assert hidden.usage.completion_tokens_details is not None
    assert hidden.usage.completion_tokens_details.reasoning_tokens
    shown = ask(served.client, "spiders", extra_body={"include_reasoning": True})
    assert "Three times eight" in shown.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert shown.usage == hidden.usage


def test_logprobs(served: Served) -> None:
    answer = ask(served.client, "capital", logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == "Paris is the capital of France."
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    chunks = stream(served.client, "capital", logprobs=True, top_logprobs=2)
    entries = [
        entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content or ()
    ]
    assert [entry.token for entry in entries] == [entry.token for entry in logprobs.content]


def test_a_tool_call_and_its_result(served: Served) -> None:
    asked, answered = DIALOGUES["weather-paris"], DIALOGUES["result-paris"]
    first = ask(served.client, "weather-paris", tools=asked["tools"])
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("get_weather", "Paris")  # type: ignore[union-attr]
    messages = [
        *asked["messages"],
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": answered["messages"][-1]["content"]},
    ]
    second = ask(served.client, "weather-paris", messages=messages, tools=asked["tools"])
    assert second.choices[0].message.content == answered["raw"]


def test_refusals_keep_their_status(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as two:
        ask(served.client, "capital", n=2)
    assert two.value.body["param"] == "n"  # type: ignore[index]
    assert two.value.code == "unsupported_field"
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(served.client, "capital", model="no-such-model")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        ask(served.client, "capital", messages=[{"role": "user", "content": "word " * 20_000}])
    assert long.value.code == "context_length_exceeded"


def test_explicit_nulls(served: Served) -> None:
    fields = (
        "tools",
        "tool_choice",
        "stop",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stream",
        "n",
        "response_format",
        "logprobs",
        "user",
        "stream_options",
        "parallel_tool_calls",
        "logit_bias",
    )
    body = {"model": MODEL, "messages": DIALOGUES["capital"]["messages"], **dict.fromkeys(fields)}
    status, answer = raw(served, "POST", "/v1/chat/completions", body)
    assert status == 200
    assert answer["choices"][0]["message"]["content"]


def test_models(served: Served) -> None:
    (model,) = served.client.models.list().data
    assert (model.id, model.object, model.max_model_len) == (MODEL, "model", 16_384)  # type: ignore[attr-defined]
    assert served.client.models.retrieve(MODEL) == model
    assert raw(served, "GET", f"/models/{MODEL}")[1]["id"] == MODEL
    assert raw(served, "GET", "/models")[1]["data"][0]["id"] == MODEL


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/responses", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_every_path_answers_in_the_envelope(served: Served, method: str, path: str, status: int) -> None:
    found, answer = raw(served, method, path)
    assert found == status
    assert set(answer["error"]) == {
        "message",
        "type",
        "param",
        "code",
        "retryable",
        "request_id",
        "inference_ran",
    }


def test_large_prompts_pass_the_link(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(served.client, "capital", messages=[{"role": "user", "content": "many words " * 180_000}])
    # Two megabytes went through HTTP, the websocket and the template; only the context is too small.
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as too_large:
        ask(served.client, "capital", messages=[{"role": "user", "content": "x" * (8 << 20)}])
    assert (too_large.value.status_code, too_large.value.code) == (413, "request_body_too_large")


def test_eight_at_once_are_one_batch_and_each_its_own(served: Served) -> None:
    dialogues = ["capital", "opposite", "moon", "colour", "lighthouse", "tides", "count", "bees"]
    alone = [ask(served.client, dialogue).choices[0].message.content for dialogue in dialogues]
    steps = served.status()["engine"]["steps"]
    tokens = served.status()["engine"]["generated_tokens"]
    # The engine stands still until all eight have come to it.
    child = served.status()["engine"]["child_pid"]
    os.kill(child, signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = pool.map(lambda d: ask(served.client, d).choices[0].message.content, dialogues)
        try:
            served.until(lambda status: sum(status["jobs"][state] for state in ("queued", "running")) == 8)
        finally:
            os.kill(child, signal.SIGCONT)
        together = list(asked)
    after = served.status()["engine"]
    assert together == alone
    # Far fewer steps than tokens: they decoded side by side.
    assert after["steps"] - steps < (after["generated_tokens"] - tokens) * 0.7


def test_the_client_goes_away(served: Served) -> None:
    before = served.status()["engine"]["cancels"]
    answer = served.endless()
    next(iter(answer))
    answer.close()
    status = served.until(lambda status: not status["engine"]["running"])
    assert status["engine"]["cancels"] == before + 1


def test_the_engine_is_killed_in_mid_answer(served: Served) -> None:
    chunks = iter(served.endless())
    next(chunks)
    child = served.status()["engine"]["child_pid"]
    os.kill(child, signal.SIGKILL)
    with pytest.raises(openai.APIError) as failed:
        list(chunks)
    assert failed.value.code == "provider_error"
    # While the model is loaded again nobody can serve, and the gateway says so; the SDK tries again.
    patient = served.client.with_options(max_retries=20)
    again = ask(patient, "capital")
    assert again.choices[0].message.content == "Paris is the capital of France."
    assert served.status()["engine"]["restarts"] == 1
