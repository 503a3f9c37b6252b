"""Starts services quickly: a process that has imported all forks for each; `python -m tests.chaos.nursery SERVICE...`.

A service takes seconds of CPU to import what it needs, and chaos kills many. Forked processes are as real as others.
It reads lines of JSON (`services`, `environment`, `out`, `log`) and answers each with the process id. There is one for
services that need LiteLLM and one for those that do not, so that each has the size that it has elsewhere: the kernel
closes the sockets of a killed process only when it has freed its memory.
"""

import importlib
import json
import os
import sys
import traceback
from typing import Any

_MODULES = ("uvloop", "tests.chaos.plugin")


def main(services: list[str]) -> None:
    """Forks until its standard input ends."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    for module in (*(f"procession_services.{service}.app" for service in services), *_MODULES):
        importlib.import_module(module)
    _say({"ready": os.getpid()})
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _serve(asked)
        _say({"pid": pid})
        _reap()


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _reap() -> None:
    """Forgets processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _serve(asked: dict[str, Any]) -> None:
    """Becomes the service; never returns."""
    code = 1
    try:
        _die_with_parent()
        os.environ.update(asked["environment"])
        for number, path in ((1, asked["out"]), (2, asked["log"])):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from procession_services.processor_host.process import run  # noqa: PLC0415 - imported already
        from procession_services.runtime.settings import Settings  # noqa: PLC0415

        apps = {
            name: importlib.import_module(f"procession_services.{name}.app") for name in asked["services"]
        }
        run({name: app.start for name, app in apps.items()}, Settings.load())
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415
        import signal  # noqa: PLC0415

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
