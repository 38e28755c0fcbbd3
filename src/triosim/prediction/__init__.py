"""The road from a workload to its result, and what the result consists of."""
