"""The ten-line tools of the page with the real packages of LangGraph, smolagents, pydantic-ai and LlamaIndex: each block is run."""

from __future__ import annotations

from collections.abc import Callable


def test_the_tools_of_the_page_run(run_page: Callable[..., str]) -> None:
    printed = run_page("tools.md").split()
    assert printed == ["langgraph", "42", "smolagents", "42", "pydantic-ai", "42", "llama-index", "42"]
