"""ParseLLM: PARSE as a LlamaIndex LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    MessageRole,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.tools.types import BaseTool

from parse_engine import InvalidRequestError
from parse_integrations.calls import Asked
from parse_integrations.errors import AnswerError
from parse_integrations.llama_index.events import Report
from parse_integrations.llama_index.messages import completion, to_dicts
from parse_integrations.llama_index.responses import (
    acompletions,
    alast,
    areported,
    astream,
    completions,
    last,
    reported,
    stream,
)
from parse_integrations.llama_index.structured import StructuredParse
from parse_integrations.llama_index.tools import tool_schemas, written_calls
from parse_integrations.messages import Message


class ParseLLM(StructuredParse):
    r"""An LLM of two models: a small one drafts, a large one judges and writes what is missing.

    Models are loaded at the first call, or by ``load()``; two ParseLLM on the same models share
    them. All settings but those of loading and of the judge's wording can also be given to a single
    call, as in ``llm.complete(prompt, threshold=0.9)``. Unset, they are those of ParseConfig and of
    the target's generation config. What a call does not know is refused.

    Parameters
    ----------
    model, draft_model : str
        Large and small model: hub id, local folder or ``.gguf`` file.
    engine : Engine, optional
        Loaded models, instead of the two.
    threshold : float, optional
        Verdict in 0..1 that a prefix of the draft must reach to be accepted. Given without a
        verdict it is the paper's, for ``p_correct``.
    calibration : Calibration, path or dict, optional
        What ``python -m parse_engine calibrate`` wrote for these models.
    verdict, accept_rule, cut_at, max_prefixes, judge_layout, verify_order, signals : optional
        How drafts are cut, judged and accepted; see ParseConfig.
    labels, brief, question : optional
        The judge's wording; see ParseConfig.
    max_draft_tokens : int, optional
        Upper bound on the length of a draft.
    mode : {"parse", "target", "draft"}, optional
        ``target`` and ``draft`` answer with one model alone, to compare.
    temperature, top_p, top_k, seed : optional
        How the next token is chosen; temperature 0 is greedy.
    max_tokens : int, optional
        Most tokens of an answer.
    stop : list of str, optional
        Texts that end an answer; a ReActAgent wants ``["\nObservation:"]``.
    timeout : float, optional
        Seconds after which the models are stopped and a CallTimeoutError is raised.
    tool_format : str or ToolFormat, optional
        How the target writes tool calls: ``hermes``, ``llama3_json``, ``mistral``, or your own.
        Unset, read off its chat template.
    dtype, device_map, quantization_config, revision, local_files_only : optional
        How the target is loaded; see ``Engine.from_pretrained``. So are ``attn_implementation``,
        ``chat_template_kwargs`` and ``trust_remote_code``; with the prefix ``draft_`` they are the
        draft model's.
    context_window : int, optional
        What LlamaIndex may fill with prompt and answer; unset, read off the target.
    verification_events : bool
        Whether a ParseVerificationEvent is sent for each call.
    system_prompt, messages_to_prompt, completion_to_prompt, query_wrapper_prompt : optional
        As LlamaIndex has them. A function of yours that makes prompts takes the place of the
        models' chat templates.

    Examples
    --------
    >>> llm = ParseLLM(model="Qwen/Qwen3-8B", draft_model="Qwen/Qwen3-0.6B", threshold=0.8)
    >>> llm.complete("Write a SQL query that counts orders by month.").text  # doctest: +SKIP
    """

    # Each endpoint runs the same code and none runs another one, so that LlamaIndex's decorators
    # report each call once.

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation."""
        asked = self._asked_chat(messages, kwargs)
        return last(stream(asked, self._report(asked)))

    @reported(llm_chat_callback)
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation; each response has all text so far, and the new piece as delta."""
        asked = self._asked_chat(messages, kwargs)
        return stream(asked, self._report(asked))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation without blocking the event loop; cancelling stops the models."""
        # loading models and rendering prompts would block it
        asked = await asyncio.to_thread(self._asked_chat, messages, kwargs)
        return await alast(astream(asked, self._report(asked)))

    @areported(llm_chat_callback)
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """Answer a conversation, streamed, without blocking the event loop."""
        asked = await asyncio.to_thread(self._asked_chat, messages, kwargs)
        return astream(asked, self._report(asked))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt; ``formatted`` says that it is in the form that the target reads."""
        asked = self._asked_completion(prompt, formatted, kwargs)
        return completion(last(stream(asked, self._report(asked))))

    @reported(llm_completion_callback)
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Answer a prompt; each response has all text so far, and the new piece as delta."""
        asked = self._asked_completion(prompt, formatted, kwargs)
        return completions(stream(asked, self._report(asked)))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Answer a prompt without blocking the event loop; cancelling stops the models."""
        asked = await asyncio.to_thread(self._asked_completion, prompt, formatted, kwargs)
        return completion(await alast(astream(asked, self._report(asked))))

    @areported(llm_completion_callback)
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Answer a prompt, streamed, without blocking the event loop."""
        asked = await asyncio.to_thread(self._asked_completion, prompt, formatted, kwargs)
        return acompletions(astream(asked, self._report(asked)))

    def _asked_chat(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> Asked:
        write = self._write if self._writes_messages else None
        return self._asked(self._engine(), to_dicts(messages), given, write)

    def _write(self, messages: Sequence[Message]) -> str:
        assert self.messages_to_prompt is not None
        prompt = self.messages_to_prompt(
            [ChatMessage(role=MessageRole(m["role"]), content=m["content"]) for m in messages]
        )
        return _checked_prompt("messages_to_prompt", prompt)

    def _asked_completion(self, prompt: str, formatted: bool, given: dict[str, Any]) -> Asked:
        messages = [{"role": "user", "content": prompt}]
        make = self.completion_to_prompt
        if not formatted and make in (None, default_completion_to_prompt):
            return self._asked(self._engine(), messages, given)
        text = prompt
        if not formatted and make is not None:
            text = _checked_prompt("completion_to_prompt", make(prompt))
        return self._asked(self._engine(), messages, given, lambda _: text)

    def _report(self, asked: Asked) -> Report:
        return Report(asked, wanted=self.verification_events)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,  # noqa: ARG002 - there is nothing to tell
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of ``chat`` that offer tools.

        A call is enforced with ``tool_required``, or a ``tool_choice`` of any or a tool's name:
        neither model can write anything else.
        """
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(
                ChatMessage(role=MessageRole.USER, content=user_msg)
                if isinstance(user_msg, str)
                else user_msg
            )
        if tool_choice is None and tool_required:
            tool_choice = "any"
        calling = {"tool_choice": tool_choice, "parallel_tool_calls": allow_parallel_tool_calls}
        return {"messages": messages, "tools": tool_schemas(tools), **calling, **kwargs}

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **kwargs: Any,  # noqa: ARG002 - LlamaIndex may pass any
    ) -> list[ToolSelection]:
        """Return the calls that a response makes.

        Parameters
        ----------
        response : ChatResponse
            An answer, or a part of one that is streamed.
        error_on_no_tool_call : bool
            Raise where there is none.

        Raises
        ------
        AnswerError
            With what was written instead.
        """
        calls = [
            ToolSelection(tool_id=id_ or "", tool_name=name, tool_kwargs=arguments)
            for id_, name, arguments in written_calls(response.message)
            if arguments is not None
        ]
        if not calls and error_on_no_tool_call:
            raw = response.raw if isinstance(response.raw, dict) else {}
            cut_off = raw.get("finish_reason") == "length"
            raise AnswerError(
                f"No tool was called; the answer is: {response.message.content!r}.",
                "It was cut off: give more max_tokens."
                if cut_off
                else "Give tools and tool_required=True, which is enforced, or "
                "error_on_no_tool_call=False.",
            )
        return calls


def _checked_prompt(name: str, prompt: Any) -> str:
    if isinstance(prompt, str) and prompt:
        return prompt
    raise InvalidRequestError(
        f"{name} returned {prompt!r}.", "It must return the prompt, a text that is not empty."
    )
