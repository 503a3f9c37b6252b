"""What all services share that run operations on a run's context."""
