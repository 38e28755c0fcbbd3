"""Plans as the configuration of a framework that runs them."""
