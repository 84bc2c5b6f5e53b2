"""What a LlamaIndex LLM promises, as tests that any package can inherit.

::

    import pytest
    from llama_index.llms.yours import YourLLM
    from parse_integrations.llama_index.conformance import LLMConformance

    class TestYourLLM(LLMConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def llm(cls):
            return YourLLM(model="...", temperature=0)

The model is asked to answer the same question in the same way each time, so make it greedy and
its answers short, about 100 tokens. It need not be clever: only the form of its answers is judged.
What a model does not claim is skipped: tools and structured output are asked of models whose
metadata say ``is_function_calling_model``, and errors where there is a ``broken_llm``. What it
claims wrongly can be left out: override the test, and mark it as an expected failure with the
reason.

Uses llama-index-core and pytest, and nothing of this package; importing it loads no torch. Tests
of coroutines run ``asyncio.run``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    f"{__name__}.abilities", f"{__name__}.endpoints", f"{__name__}.lasting"
)

from parse_integrations.llama_index.conformance.abilities import AbilityTests  # noqa: E402
from parse_integrations.llama_index.conformance.endpoints import EndpointTests  # noqa: E402
from parse_integrations.llama_index.conformance.lasting import LastingTests  # noqa: E402

__all__ = ["LLMConformance"]


# in this order pytest runs the last class first: what stores and copies comes last, for there are
# LLMs that do not survive being pickled
class LLMConformance(LastingTests, AbilityTests, EndpointTests):
    """All tests; give the fixture ``llm``, scope class, and change the attributes as you need.

    Attributes
    ----------
    question : str
        What is asked where any question will do.
    questions : tuple of str
        Different questions, asked at the same time.
    patience : float
        Seconds in which a model must stop after its stream was closed.
    enforces_tools : bool
        Whether ``tool_required`` makes the model call a tool, as it should; False skips what
        depends on it.
    """
