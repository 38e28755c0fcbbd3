"""Files of other simulators, read and written: Chakra execution traces, ASTRA-sim's network and system files."""
