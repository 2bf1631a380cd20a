"""Other engines, measured together with this one: installed ones in a separate process each, servers by their URL."""
