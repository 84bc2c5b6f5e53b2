"""ChatParse: PARSE as a LangChain chat model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from parse_engine.request import check_text
from parse_integrations.calls import Asked
from parse_integrations.langchain.callbacks import aannounce, announce
from parse_integrations.langchain.errors import langchain_errors
from parse_integrations.langchain.messages import ChunkMaker, to_dicts
from parse_integrations.langchain.schemas import openai_tool
from parse_integrations.langchain.settings import ParseSettings
from parse_integrations.langchain.structured import Method, structured
from parse_integrations.messages import check_conversation, fit
from parse_integrations.tool_formats import check_format
from parse_integrations.tools import check_choice, check_offered, check_parallel

# What callers set for every model, or for tracing, and what changes no answer here.
UNUSED = (
    *("stream", "streaming", "max_retries", "strict"),
    *("ls_structured_output_format", "structured_output_format"),
)


class ChatParse(ParseSettings):
    """A chat model of two: a small one drafts, a large one judges and writes what is missing.

    Models are loaded at the first call, or by ``load()``; two ChatParse on the same models share
    them. All settings but those of loading and of the judge's wording can also be given to a single
    call, as in ``llm.invoke(question, threshold=0.9)`` or ``llm.bind(max_tokens=50)``. Unset, they
    are those of ParseConfig and of the target's generation config.

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
        Texts that end an answer.
    timeout : float, optional
        Seconds after which the models are stopped and a ModelTimeoutError is raised.
    streaming : bool
        Whether ``invoke`` streams inside, as LangChain's other models have it.
    tool_format : str or ToolFormat, optional
        How the target writes tool calls: ``hermes``, ``llama3_json``, ``mistral``, or your own.
        Unset, read off its chat template.
    dtype, device_map, quantization_config, revision, local_files_only : optional
        How the target is loaded; see ``Engine.from_pretrained``. So are ``attn_implementation``,
        ``chat_template_kwargs`` and ``trust_remote_code``; with the prefix ``draft_`` they are the
        draft model's.
    max_retries, api_key : optional
        Accepted for code that gives them to every model: nothing is sent that could be retried.

    Examples
    --------
    >>> llm = ChatParse(model="Qwen/Qwen3-8B", draft_model="Qwen/Qwen3-0.6B", threshold=0.8)
    >>> llm.invoke("Write a SQL query that counts orders by month.").text  # doctest: +SKIP
    """

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # folded from the stream, so that both say the same
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        chunks = [chunk async for chunk in self._astream(messages, stop, run_manager, **kwargs)]
        return generate_from_stream(iter(chunks))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with langchain_errors():
            asked = self._ask(messages, stop, kwargs)
            maker = ChunkMaker(asked.engine.target.name)
            with closing(asked.stream()) as events:
                for event in events:
                    announce(event, run_manager)
                    yield from maker.chunks(asked.pieces(event))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with langchain_errors():
            # loading models and rendering prompts would block the loop
            asked = await asyncio.to_thread(self._ask, messages, stop, kwargs)
            maker = ChunkMaker(asked.engine.target.name)
            async with aclosing(asked.astream()) as events:
                async for event in events:
                    await aannounce(event, run_manager)
                    for chunk in maker.chunks(asked.pieces(event)):
                        yield chunk

    def _ask(
        self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> Asked:
        kwargs = {name: value for name, value in given.items() if name not in UNUSED}
        engine = self._engine(kwargs.pop("model", None))
        return self._asked(engine, to_dicts(messages), {**kwargs, "stop": stop})

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return a model that can call tools.

        Parameters
        ----------
        tools : sequence
            Functions, pydantic models, TypedDicts, LangChain tools or JSON schemas.
        tool_choice : str, dict or bool, optional
            ``auto`` (unset), ``none``, ``any``, or the name of a tool. The last two are enforced:
            neither model can write anything but a call with arguments of the schema.
        parallel_tool_calls : bool, optional
            Where a call is enforced, True allows several of them; unset, there is one.
        strict : bool, optional
            Whether schemas are closed as OpenAI's strict mode wants it.
        **kwargs
            Bound as well.
        """
        offered = [openai_tool(tool, strict) for tool in tools]
        with langchain_errors():
            check_choice(tool_choice, check_offered(offered))
            check_parallel(parallel_tool_calls)
        wanted = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self.bind(tools=offered, **given, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a model whose answers are objects of a schema, whatever the models would write.

        Draft and target can write nothing else. An answer that ``max_tokens`` cuts off is an
        OutputParserException.

        Parameters
        ----------
        schema : dict or type, optional
            Pydantic model, TypedDict or JSON schema; may be missing for ``json_mode``.
        include_raw : bool
            Return a dict of ``raw``, ``parsed`` and ``parsing_error``, and raise nothing.
        method : {"json_schema", "function_calling", "json_mode"}
            The answer itself is JSON of the schema, it is a tool call, or it is any JSON object.
        strict : bool, optional
            Whether the schema is closed as OpenAI's strict mode wants it.
        **kwargs
            Settings of the calls, as ``bind`` takes them.
        """
        with langchain_errors():
            return structured(
                self,
                schema,
                method=method,
                include_raw=include_raw,
                strict=strict,
                settings=kwargs,
            )

    def get_token_ids(self, text: str) -> list[int]:
        """Return the target's token ids of a text; loads the models if they are not."""
        with langchain_errors():
            check_text("text", text)
            return list(self._engine().target.encode(text))

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Return the length of the prompt that the target would read.

        Parameters
        ----------
        messages : list of BaseMessage
            The conversation.
        tools : sequence, optional
            Tools as ``bind_tools`` takes them.
        """
        offered = [openai_tool(tool) for tool in tools or ()]
        with langchain_errors():
            conversation = to_dicts(messages)
            check_conversation(conversation)
            engine = self._engine()
            form = check_format(self.tool_format)
            fitted = fit(engine.target, conversation, check_offered(offered), form)
            return len(engine.target.render(fitted.messages, fitted.tools).ids)
