"""Kills, damage and interrupts, counted: scripts that the tests run shortly."""
