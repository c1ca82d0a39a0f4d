"""SkyRL Gym's registry makes an environment of ``ShellEnv``, which plays episodes."""

from __future__ import annotations

import skyrl_gym
from holdfast import Sandbox, SandboxClient
from holdfast.integrations.skyrl_gym import ShellEnv
from skyrl_gym.envs.registration import register


class Answer(ShellEnv):
    def reward(self, sandbox: Sandbox) -> float:
        return float(sandbox.exec("cat /tmp/answer").stdout == "42\n")


register(id="holdfast-answer", entry_point=Answer)


def test_plays_an_episode(client: SandboxClient) -> None:
    env = skyrl_gym.make("holdfast-answer", extras={"image": "host", "setup": "X=6"})
    prompt = [{"role": "user", "content": "Write 42."}]
    assert env.init(prompt)[0] == prompt
    step = env.step("First:\n```bash\ncd /tmp; echo $((X * 7)) > answer; ls answer\n```")
    assert (step["observations"][0]["content"], step["done"], step["reward"]) == ("answer\n[exit code 0]", False, 0.0)
    last = env.step("Done.")
    assert (last["done"], last["reward"], last["observations"]) == (True, 1.0, [])
    env.close()
    env.close()


def test_ends_after_its_turns(client: SandboxClient) -> None:
    env = skyrl_gym.make("holdfast-answer", extras={"max_turns": 1})
    env.init([])
    assert env.step("```bash\ntrue\n```")["done"]
    env.close()
