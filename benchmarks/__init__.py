"""What Procession costs, measured; see docs/performance.md."""
