"""Designs as devices of a system: one file each reader."""
