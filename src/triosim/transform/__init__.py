"""From a trace to a trace: another batch or sequence, recomputation, the forward alone, recordings row by row."""
