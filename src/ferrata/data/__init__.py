"""Tasks and demonstrations as files, and the checks that they pass before anything trains on
them."""
