"""What every service shares below the bus: settings, clock, state, telemetry, embedded servers."""
