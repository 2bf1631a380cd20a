"""What goes over the wire: requests, answers, errors and events."""
