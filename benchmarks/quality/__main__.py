"""`python -m benchmarks.quality TOPIC`: a topic is a module of this package that has `main()`."""

import importlib
import pkgutil
import sys

import benchmarks.quality


def main(arguments: list[str]) -> int:
    """Runs a topic; returns the exit code."""
    topics = sorted(
        m.name for m in pkgutil.iter_modules(benchmarks.quality.__path__) if not m.name.startswith("_")
    )
    if len(arguments) != 1 or arguments[0] not in topics:
        sys.stderr.write(f"usage: python -m benchmarks.quality {'|'.join(topics)}\n")
        return 2
    code: int = importlib.import_module(f"benchmarks.quality.{arguments[0]}").main()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
