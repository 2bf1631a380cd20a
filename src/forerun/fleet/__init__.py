"""Several engines behind one socket, each in a process that Ray Serve starts, monitors and restarts."""
