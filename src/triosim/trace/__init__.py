"""The one representation of a step: operators, values, modules, symbols and repeated blocks."""
