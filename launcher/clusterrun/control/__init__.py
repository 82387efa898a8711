"""Requests to a running job from outside its nodes' connections: its user's and its scheduler's."""
