"""A plugin for pytest and for unittest's runner that writes a signed report of each test; its text is put into sandboxes.

Owns the inner half of ``signed``: which outcome each test had, in a chain of signatures whose key it reads and deletes before any code
of the repository runs. Must run on Python 3.6 and pytest 4; imports the standard library alone.
"""

# mypy: ignore-errors
import hashlib
import hmac
import json
import os
import sys

FOLDER = os.environ.pop("HOLDFAST_REPORT", "")
LOAD = "-p holdfast_report "
PYTEST = ("pytest", "py.test")


class Writer:
    """Lines of JSON, each with the signature of itself and all before it."""

    def __init__(self, folder):
        with open(os.path.join(folder, "key"), "rb") as file:
            self._key = file.read()
        os.unlink(os.path.join(folder, "key"))
        self._last = b""
        self._count = 0
        self._file = os.open(os.path.join(folder, "report"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._write = os.write
        self._process = os.getpid()
        self._new, self._dumps, self._sha256, self._pid = hmac.new, json.dumps, hashlib.sha256, os.getpid

    def put(self, **record):
        if self._pid() != self._process:  # a forked child of the tests
            return
        text = self._dumps(record, sort_keys=True)
        self._last = self._new(self._key, self._last + text.encode("utf-8"), self._sha256).hexdigest().encode("ascii")
        self._write(self._file, text.encode("utf-8") + b" " + self._last + b"\n")
        self._count += 1


class Watched:
    """Functions that decide an outcome, as they were before the repository's code ran."""

    def __init__(self, *places):
        self._places = [(owner, name, getattr(owner, name, None)) for owner, name in places]

    def changed(self):
        for owner, name, before in self._places:
            now = getattr(owner, name, None)
            if getattr(now, "__func__", now) is not getattr(before, "__func__", before):
                return name
        return ""


def _pytest_watched():
    import importlib
    import unittest.case

    python, reports, runner = [importlib.import_module("_pytest." + name) for name in ("python", "reports", "runner")]
    return Watched(
        (runner, "pytest_runtest_makereport"),
        (runner, "call_runtest_hook"),
        (runner, "runtestprotocol"),
        (runner, "call_and_report"),
        (runner.CallInfo, "from_call"),
        (reports.TestReport, "from_item_and_call"),
        (reports.TestReport, "__init__"),
        (python, "pytest_pyfunc_call"),
        (python.Function, "runtest"),
        (unittest.case.TestCase, "run"),
        (Writer, "put"),
        (Watched, "changed"),
    )


class Plugin:
    """Outcomes as pytest's own summary names them: a failing setup or teardown is an error beside the outcome of the call."""

    def __init__(self, writer):
        self._writer = writer
        self._watched = _pytest_watched()
        self._hooks = None

    def pytest_sessionstart(self, session):
        self._config = session.config

    def pytest_collection_finish(self, session):
        self._hooks = self._deciding()

    def _deciding(self):
        hook = self._config.hook
        names = set()
        for name in (
            "pytest_runtest_makereport",
            "pytest_runtest_logreport",
            "pytest_runtest_protocol",
            "pytest_pyfunc_call",
            "pytest_runtest_call",
        ):
            for each in getattr(hook, name).get_hookimpls():
                names.add((name, each.plugin_name))
        return names

    def _check(self):
        changed = self._watched.changed()
        if not changed and self._hooks is not None and self._deciding() - self._hooks:
            changed = "hooks"
        if changed:
            self._writer.put(tampered=changed)

    def pytest_collectreport(self, report):
        if report.failed:
            self._writer.put(id=report.nodeid, outcome="ERROR")

    def pytest_runtest_logreport(self, report):
        self._check()
        outcome = None
        if getattr(report, "wasxfail", None) is not None:
            outcome = "XFAIL" if report.skipped else "XPASS" if report.passed else None
        if outcome is None:
            if report.when == "call":
                outcome = {"passed": "PASSED", "failed": "FAILED", "skipped": "SKIPPED"}[report.outcome]
            elif report.failed:
                outcome = "ERROR"
            elif report.skipped:
                outcome = "SKIPPED"
        if outcome is not None and (report.when == "call" or outcome in ("ERROR", "SKIPPED", "XFAIL")):
            self._writer.put(id=report.nodeid, outcome=outcome)

    def pytest_sessionfinish(self, session, exitstatus):
        self._check()
        self._writer.put(end=int(exitstatus))


def pytest_configure(config):
    """pytest has loaded this module with ``-p``."""
    os.environ["PYTEST_ADDOPTS"] = os.environ.get("PYTEST_ADDOPTS", "").replace(LOAD, "", 1)
    if FOLDER and not hasattr(config, "workerinput") and os.path.exists(os.path.join(FOLDER, "key")):
        writer = Writer(FOLDER)
        writer.put(runner="pytest")
        config.pluginmanager.register(Plugin(writer), "holdfast_signed_report")


def watch_unittest():
    """Sign what a runner of unittest (such as Django's) records."""
    import unittest
    import unittest.case
    import unittest.result

    writer = Writer(FOLDER)
    writer.put(runner="unittest")
    base = unittest.result.TestResult

    def described(test):
        first = test.shortDescription() if hasattr(test, "shortDescription") else None
        return "\n".join([str(test), first]) if first else str(test)

    def signing(name, outcome):
        inner = getattr(base, name)

        def method(self, test, *rest):
            changed = watched.changed()
            if changed:
                writer.put(tampered=changed)
            writer.put(id=described(test), outcome=outcome)
            return inner(self, test, *rest)

        setattr(base, name, method)

    outcomes = (
        ("addSuccess", "ok"),
        ("addFailure", "FAIL"),
        ("addError", "ERROR"),
        ("addSkip", "skipped"),
        ("addExpectedFailure", "expected failure"),
        ("addUnexpectedSuccess", "unexpected success"),
    )
    for name, outcome in outcomes:
        signing(name, outcome)
    sub = base.addSubTest

    def add_sub_test(self, test, subtest, error):
        if error is not None:
            writer.put(id=described(test), outcome="FAIL" if issubclass(error[0], test.failureException) else "ERROR")
        return sub(self, test, subtest, error)

    base.addSubTest = add_sub_test
    stop = base.stopTestRun

    def stop_test_run(self):
        changed = watched.changed()
        if changed:
            writer.put(tampered=changed)
        writer.put(end=0 if self.wasSuccessful() else 1)
        return stop(self)

    base.stopTestRun = stop_test_run
    places = [(base, name) for name, _ in outcomes]
    places += [(base, "addSubTest"), (base, "stopTestRun"), (Writer, "put"), (Watched, "changed")]
    watched = Watched(*places, (unittest.case.TestCase, "run"), (unittest.case.TestCase, "__call__"))


def main():
    """As ``sitecustomize``: only in the process that runs the tests."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    unittests = any(word.endswith("runtests.py") for word in words) or "unittest" in words
    if unittests and FOLDER and os.path.exists(os.path.join(FOLDER, "key")):
        sys.path[:] = [path for path in sys.path if path != os.path.join(FOLDER, "plugin")]
        watch_unittest()
    elif FOLDER:
        os.environ["HOLDFAST_REPORT"] = FOLDER  # for the runner, which another process may start
        if any(os.path.basename(os.path.dirname(word)) == "pytest" or os.path.basename(word) in PYTEST for word in words):
            os.environ["PYTEST_ADDOPTS"] = LOAD + os.environ.get("PYTEST_ADDOPTS", "")


if __name__ == "sitecustomize":
    main()
