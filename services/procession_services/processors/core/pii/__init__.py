"""What finds, judges and rewrites personal data: pure functions behind `pii-detector`."""
