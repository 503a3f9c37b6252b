"""The orchestrator: owns runs, as a pure reducer with a thin shell around it."""
