"""Training after pre-training: a step of several phases, each a pass of one of several models."""
