"""The policy of a whole job, pure: who joins, when the world is complete, causes, restarts, the verdict."""
