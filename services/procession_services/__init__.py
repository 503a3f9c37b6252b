"""The application: one subpackage per service, what they share, and the command line."""
