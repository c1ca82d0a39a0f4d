"""The harnesses that are tested: their packages at the versions that were tried, their tests, and what their own reference does.

Owns nothing but the list. A suite's tests are the file ``tests/integrations/harnesses/test_NAME.py``. ``python`` is the oldest version that
the package supports; without one on this machine the suite is skipped by name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suite:
    """One harness."""

    name: str
    package: str
    """The package whose version the table has."""
    requirements: tuple[str, ...]
    """What is installed beside this project, its extra of the same name included where there is one."""
    python: tuple[int, int] = (3, 11)
    python_below: tuple[int, int] = (3, 99)
    """The first version that it does not support."""
    short: bool = False
    """Whether it runs in ``.ci/run``."""
    reference: str = ""
    """What the harness's own reference does in the same tests, where it is known and not run here."""
    reference_variable: str = ""
    """A setting of HOLDFAST_REFERENCE with which the tests run on the harness's own reference, for comparison."""
    extra: bool = True
    """Whether the wheel has an extra of this name."""
    bare: tuple[str, ...] = ()
    """Packages that are installed without what they require, because that cannot be built everywhere and is not used here."""


SUITES = (
    Suite("mcp", "mcp", ("mcp==2.3.0",), short=True),
    Suite("mini", "mini-swe-agent", ("mini-swe-agent==2.4.6", "datasets"), short=True, reference="11 of 11 on docker"),
    Suite("inspect", "inspect-ai", ("inspect-ai==0.3.285",), short=True, reference_variable="local"),
    Suite("e2b", "e2b", ("e2b==2.63.0",), short=True, extra=False),
    Suite("deepagents", "deepagents", ("deepagents==0.7.32", "langchain-tests==1.1.9"), reference_variable="local"),
    Suite("harbor", "harbor", ("harbor==0.26.0",), python=(3, 12)),
    Suite("swerex", "swe-rex", ("swe-rex==1.4.0", "aiohttp", "requests"), reference_variable="local"),
    Suite("openai_agents", "openai-agents", ("openai-agents==0.24.0",)),
    Suite("nemo_gym", "nemo-gym", (), python=(3, 12), extra=False, bare=("nemo-gym==0.4.0",)),
    Suite("verifiers", "verifiers", ("verifiers==0.4.0",), reference_variable="subprocess"),
    Suite("openenv", "openenv", ("openenv==0.10.0",)),
    Suite("trl", "trl", ("trl==1.16.0", "torch==2.13.0+cpu", "jmespath"), python_below=(3, 13)),
    Suite("gymnasium", "gymnasium", ("gymnasium==1.4.0",)),
    Suite("skyrl_gym", "skyrl-gym", (), extra=False, bare=("skyrl-gym==0.4.0",)),
    Suite("tools", "langgraph", ("langgraph", "smolagents", "pydantic-ai-slim", "llama-index-core"), extra=False),
)
