"""Connections between processes of clusterrun: addresses, the handshake, frames."""
