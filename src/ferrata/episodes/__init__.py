"""The episode engine: policies, the one loop that plays episodes, and their exact records."""
