"""PARSE as a LangChain chat model and a LlamaIndex LLM."""
