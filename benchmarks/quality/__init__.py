"""How good the detectors are, on labelled sets in tests/quality: `python -m benchmarks.quality TOPIC`."""
