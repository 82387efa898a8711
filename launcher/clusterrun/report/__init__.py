"""Outcomes and plans in words for people and in JSON for machines."""
