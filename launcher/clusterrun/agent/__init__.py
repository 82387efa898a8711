"""Supervision: the policy is clusterrun.policy.node, pure; this room performs what it decides."""
