"""Other engines, measured beside this one: each installed one in a process of its own, others by their URL."""
