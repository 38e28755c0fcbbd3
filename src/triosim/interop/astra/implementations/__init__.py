"""ASTRA-sim's implementations of collectives, one per file, named as in its system file."""
