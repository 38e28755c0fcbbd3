"""ASTRA-sim's inputs, played: network YAML, system JSON, communicator groups and Chakra traces."""
