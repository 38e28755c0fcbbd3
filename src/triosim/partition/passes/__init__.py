"""Passes over the transfers of a step: which of them are fused into one."""
