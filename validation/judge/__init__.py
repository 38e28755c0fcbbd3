"""Scripts that judge by figures of others."""
