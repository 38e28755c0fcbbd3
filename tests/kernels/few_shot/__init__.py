"""Devices from few networks."""
