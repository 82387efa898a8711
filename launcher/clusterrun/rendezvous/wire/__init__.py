"""Connections between agents: the handshake, frames and timers."""
