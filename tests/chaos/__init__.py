"""The whole system as processes, and whatever can happen to them while mixed runs go on: `python -m tests.chaos`."""
