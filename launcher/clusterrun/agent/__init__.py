"""Supervision: the policy is decide.py, pure; the rest performs what it decides."""
