"""The eight endpoints: they say the same, each thing once, and leave the event loop alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks.token_counting import get_tokens_from_response
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import PromptTemplate

from parse_integrations.llama_index.conformance.recording import (
    ASYNC,
    ENDPOINTS,
    STREAMS,
    Runs,
    acollect,
    at_work,
    collect,
    recorded_events,
    still_at_work,
    text_of,
)

INSTANT = 0.05  # seconds; of a shorter answer nobody can tell what it blocked


def names(threads: set[threading.Thread]) -> str:
    """Return the names of threads."""
    return ", ".join(sorted(thread.name for thread in threads))


class EndpointTests:
    """What chat, complete, their streams and their async forms promise."""

    question = "Name three colors."
    questions = ("Name a color.", "Name a fruit.", "Count to three.", "Say hello.")
    patience = 10.0

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls) -> LLM:
        """Return the LLM to test: override it."""
        raise NotImplementedError("override the fixture llm, with scope='class'")

    @pytest.fixture(scope="class")
    @classmethod
    def broken_llm(cls) -> LLM:
        """Return an LLM that fails while it answers; override it to have errors tested."""
        pytest.skip("there is no broken_llm")

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls, llm: LLM) -> Runs:
        """Ask each endpoint once."""
        return Runs(llm, cls.question)

    def test_metadata_tell_what_prompts_may_fill(self, llm: LLM) -> None:
        """Query engines subtract num_output from context_window, and fail below zero."""
        metadata = llm.metadata
        assert metadata.context_window > 0
        assert 0 < metadata.num_output < metadata.context_window
        assert metadata.model_name not in ("", "unknown")
        json.dumps(llm.to_payload())

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_every_endpoint_says_the_same(self, runs: Runs, endpoint: str) -> None:
        """A single user message and a completion are one question for a chat model."""
        reference = runs["chat" if "chat" in endpoint else "complete"]
        assert runs[endpoint].text
        assert runs[endpoint].text == reference.text

    def test_completions_of_a_chat_model_are_chats(self, llm: LLM, runs: Runs) -> None:
        """The prompt of a completion is a user message."""
        if not llm.metadata.is_chat_model:
            pytest.skip("it is no chat model")
        assert runs["complete"].text == runs["chat"].text

    @pytest.mark.parametrize("endpoint", STREAMS)
    def test_deltas_add_up(self, runs: Runs, endpoint: str) -> None:
        """Each response carries all text so far, and the last what the endpoint would return."""
        text = ""
        for response in runs[endpoint].responses:
            text += response.delta or ""
            assert text_of(response) == text
        assert len(runs[endpoint].responses) > 1

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_each_call_is_reported_once(self, runs: Runs, endpoint: str) -> None:
        """One start, one end, of the endpoint's own kind, and one progress event a response."""
        kind = "LLMChat" if "chat" in endpoint else "LLMCompletion"
        progress = len(runs[endpoint].responses) if endpoint in STREAMS else 0
        inside = [f"{kind}InProgressEvent"] * progress
        assert runs[endpoint].events == [f"{kind}StartEvent", *inside, f"{kind}EndEvent"]

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_raw_is_plain_json(self, runs: Runs, endpoint: str) -> None:
        """Traces store it, and agents put it into their events."""
        raw = runs[endpoint].last.raw
        assert raw is not None
        assert json.loads(json.dumps(raw)) == raw

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_usage_is_the_same_everywhere(self, runs: Runs, endpoint: str) -> None:
        """As LlamaIndex's own counter reads it off the last response."""
        counts = get_tokens_from_response(runs[endpoint].last)
        assert min(counts) > 0
        assert runs[endpoint].counts[0] == counts
        assert counts == get_tokens_from_response(runs["chat"].last)

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_token_counters_count_once(self, runs: Runs, endpoint: str) -> None:
        """A chat that runs a completion inside is counted twice."""
        assert len(runs[endpoint].counts) == 1

    def test_messages_are_left_as_they_are(self, llm: LLM) -> None:
        """Memories hand out the messages that they hold."""
        messages = [
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="Hello."),
            ChatMessage(role="assistant", content="Hello!"),
            ChatMessage(role="user", content="One thing."),
            ChatMessage(role="user", content=self.question),
        ]
        before = [message.model_dump() for message in messages]
        assert llm.chat(messages).message.role == "assistant"
        assert [message.model_dump() for message in messages] == before

    def test_formatted_prompts_are_taken(self, llm: LLM) -> None:
        """LlamaIndex passes ``formatted=True`` with prompts that it has formatted itself."""
        assert isinstance(llm.complete(self.question, formatted=True).text, str)

    def test_prompts_are_predicted(self, llm: LLM) -> None:
        """What query engines call."""
        prompt = PromptTemplate("Name three {things}.")
        text = llm.predict(prompt, things="colors")
        assert "".join(llm.stream(prompt, things="colors")) == text

        async def both() -> tuple[str, str]:
            answer = await llm.apredict(prompt, things="colors")
            stream = await llm.astream(prompt, things="colors")
            return answer, "".join([token async for token in stream])

        assert asyncio.run(both()) == (text, text)

    @pytest.mark.parametrize("endpoint", ["stream_chat", "stream_complete"])
    def test_closing_a_stream_stops_the_model(self, llm: LLM, runs: Runs, endpoint: str) -> None:
        """No end is reported, nothing goes on in the background, and the next call is right."""
        before = at_work()
        asked: Any = self.question
        if endpoint == "stream_chat":
            asked = [ChatMessage(role="user", content=self.question)]
        with recorded_events() as events:
            stream = getattr(llm, endpoint)(asked)
            next(stream)
            stream.close()
        assert not [event for event in events if event.class_name().endswith("EndEvent")]
        left = asyncio.run(still_at_work(before, self.patience))
        assert not left, f"the model goes on in {names(left)} after its stream was closed"
        assert text_of(collect(llm, endpoint, self.question)[-1]) == runs[endpoint].text

    def test_closing_an_async_stream_stops_the_model(self, llm: LLM, runs: Runs) -> None:
        """The same for coroutines."""
        before = at_work()
        messages = [ChatMessage(role="user", content=self.question)]

        async def close_early() -> set[threading.Thread]:
            stream = await llm.astream_chat(messages)
            await anext(stream)
            await stream.aclose()
            # here, for the end of the event loop waits for its own pool without end
            return await still_at_work(before, self.patience)

        left = asyncio.run(close_early())
        assert not left, f"the model goes on in {names(left)} after its stream was closed"
        assert text_of(collect(llm, "astream_chat", self.question)[-1]) == runs["chat"].text

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_errors_arrive(self, broken_llm: LLM, endpoint: str) -> None:
        """They are raised where the answer is read, and no end is reported."""
        with recorded_events() as events, pytest.raises(Exception):  # noqa: B017, PT011
            collect(broken_llm, endpoint, self.question)
        assert not [event for event in events if event.class_name().endswith("EndEvent")]

    @pytest.mark.parametrize("endpoint", ASYNC)
    def test_the_event_loop_is_not_blocked(self, llm: LLM, endpoint: str) -> None:
        """Other tasks run while the model thinks, and not only between two of its tokens."""

        async def watch() -> tuple[int, int, float]:
            turns, done = 0, asyncio.Event()

            async def other() -> None:
                nonlocal turns
                while not done.is_set():
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            asked: Any = self.question
            if "chat" in endpoint:
                asked = [ChatMessage(role="user", content=self.question)]
            call = getattr(llm, endpoint)
            begun = time.monotonic()
            responses = await acollect(call, asked, streams=endpoint in STREAMS)
            seconds = time.monotonic() - begun
            done.set()
            await task
            return turns, len(responses), seconds

        turns, responses, seconds = asyncio.run(watch())
        said = f"{responses} responses in {seconds:.3f} s, and other tasks got {turns} turns"
        if turns <= 2 * responses + 10 and seconds < INSTANT:
            pytest.skip(f"it answers too soon to tell whether it blocks: {said}")
        assert turns > 2 * responses + 10, f"the event loop was blocked: {said}"

    def test_calls_at_the_same_time_do_not_mix(self, llm: LLM) -> None:
        """In threads and in tasks, each question gets its own answer."""
        alone = [llm.complete(question).text for question in self.questions]
        with ThreadPoolExecutor(len(self.questions)) as pool:
            answers = list(pool.map(lambda question: llm.complete(question), self.questions))
        assert [answer.text for answer in answers] == alone

        async def together() -> list[str]:
            tasks = [llm.acomplete(question) for question in self.questions]
            return [answer.text for answer in await asyncio.gather(*tasks)]

        assert asyncio.run(together()) == alone
