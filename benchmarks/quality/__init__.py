"""Measures detectors and recall on the labelled sets in tests/quality: `python -m benchmarks.quality TOPIC`."""
