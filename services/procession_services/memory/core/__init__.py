"""What memory decides without touching anything: no clock, no store."""
