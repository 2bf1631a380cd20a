"""Other engines, measured beside this one: installed ones in a separate process each, servers by their URL."""
