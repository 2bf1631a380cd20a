"""Other engines, measured beside this one: each installed one in a separate process, others by their URL."""
