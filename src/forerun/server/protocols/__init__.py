"""The HTTP API's requests, answers, errors and events."""
