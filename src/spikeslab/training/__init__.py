"""The training runtime."""
