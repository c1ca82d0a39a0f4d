"""An environment of OpenEnv that counts, and its server on port 8000. A program that the test runs in a sandbox."""

from typing import Any

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State


class Add(Action):
    amount: int


class Count(Observation):
    count: int


class Counter(Environment):
    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._state = State()

    def reset(self, *args: Any, **more: Any) -> Count:
        self._count, self._state = 0, State()
        return Count(count=0)

    def step(self, action: Add, *args: Any, **more: Any) -> Count:
        self._count += action.amount
        return Count(count=self._count, reward=float(self._count == 42), done=self._count >= 42)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    uvicorn.run(create_fastapi_app(Counter, Add, Count), host="127.0.0.1", port=8000)
