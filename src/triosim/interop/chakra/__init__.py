"""Chakra execution traces: one graph of computations and communications per rank."""
