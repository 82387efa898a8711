"""How the agents of a job find another coordinator, if theirs is lost. Pure."""
