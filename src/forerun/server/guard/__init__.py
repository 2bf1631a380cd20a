"""Who may talk to the server, and in what form."""
