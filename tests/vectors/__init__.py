"""Behaviour vectors of the reference: a runner, a comparison, and an adapter for each file."""
