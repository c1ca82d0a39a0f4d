"""The helper commands inside a sandbox that need Python: `t`, `e`, `s` by the name it is called with, and `run` for graders.

Standard library only; uploaded as it is. Numbers of functions and of places with an operator come from `index.json` beside it. Its
answers are the observations of the miniature's language. The other commands are lines of shell (`tasks.SHELL`), which read what is
beside it: `at/FUNCTION` and `see/PLACE`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every command is a process of its own: what is imported is most of its time
    from collections.abc import Callable
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = {"isnot": "is not", "notin": "not in"}
LIMIT_S = 0.5
"""CPU seconds that a test may take, its imports among them; all of the module's take a hundredth of a second. A busy machine makes no
test slow."""


def main(name: str, words: list[str]) -> None:
    index = json.loads(text_of("index.json"))
    commands: dict[str, Callable[..., None]] = {"t": test, "e": edit, "s": submit, "run": run_all}
    try:
        commands[name](index, *words)
    except (KeyError, IndexError, TypeError, ValueError):
        print("ERR")


def test(index: Any) -> None:
    passed, function = run(index, index["test"])
    if not passed and not function:  # it failed in the test itself: what it called last is where to look
        passed, function = run(index, index["test"], traced=True)
    print("PASS" if passed else "FAIL " + index["functions"].get(function, "00"))


def edit(index: Any, operator: str, place: str) -> None:
    operator = operator.removeprefix("`")
    current = state(index)
    if operator not in index["operators"] or place not in current:
        raise ValueError(operator)
    changed = dict(current, **{place: operator})
    text = rendered(index, changed)
    try:
        compile(text, "module", "exec")
    except SyntaxError:
        print("ERR")
        return
    with open(index["module"], "w") as file:
        file.write(text)
    with open(os.path.join(HERE, "state.json"), "w") as file:
        json.dump(changed, file)
    with open(os.path.join(HERE, "see", place), "w") as file:
        file.write(f"SEE `{operator}\n")
    print("OK")


def submit(index: Any) -> None:
    import difflib

    path = index["module"]
    base, mine = text_of("base.py").splitlines(True), text_of(os.path.abspath(path)).splitlines(True)
    print("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    sys.stdout.writelines(difflib.unified_diff(base, mine, "a/" + path, "b/" + path))


def run_all(index: Any) -> None:
    """Each test of the module, and whether it passed: a line of JSON. null: its time was over."""
    names = [name for name in vars(importlib.import_module(index["tests"])) if name.startswith("test_")]
    print(json.dumps({name: run(index, name)[0] for name in names}))


def run(index: Any, name: str, *, traced: bool = False) -> tuple[bool | None, str]:
    """(passed or None for too long, a function of the module: where it failed, or what was called last before the failure)."""
    called = [""]
    path = os.path.abspath(index["module"])

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == path and frame.f_code.co_name in index["functions"]:
            called[0] = frame.f_code.co_name

    def over(number: int, frame: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        tests = importlib.import_module(index["tests"])
        if traced:
            sys.setprofile(note)
        getattr(tests, name)()
    except TimeoutError:
        return None, called[0]
    except BaseException:  # noqa: BLE001  whatever a test raises, it failed
        sys.setprofile(None)
        trace = sys.exc_info()[2]
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename == path and code.co_name in index["functions"]:
                called[0] = code.co_name
            trace = trace.tb_next
        return False, called[0]
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return True, ""


def text_of(name: str) -> str:
    with open(os.path.join(HERE, name)) as file:
        return file.read()


def state(index: Any) -> dict[str, str]:
    """Operators by place, as they are now."""
    current = {place: entry[2] for place, entry in index["places"].items()}
    try:
        current.update(json.loads(text_of("state.json")))
    except FileNotFoundError:
        pass
    return current


def rendered(index: Any, changed: dict[str, str]) -> str:
    """The module's text with the changed operators, from the text that the task began with."""
    lines = text_of("base.py").splitlines(True)
    for place, (line, column, operator) in sorted(index["places"].items(), key=lambda item: -item[1][1]):
        if place in changed:
            old, new = TEXTS.get(operator, operator), TEXTS.get(changed[place], changed[place])
            text = lines[line - 1]
            lines[line - 1] = text[:column] + new + text[column + len(old) :]
    return "".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    called_as = os.path.basename(sys.argv[0])
    if called_as == "helper.py":
        main(sys.argv[1], sys.argv[2:])
    else:
        main(called_as, sys.argv[1:])
