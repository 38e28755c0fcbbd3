"""Exploring designs, mappings and plans: one space of named choices, searchers that ask and are told, what they found.

``space`` holds choices, ``exploration`` what can be explored and runs a searcher on it, ``searchers/`` the searchers,
``accelerators``, ``mappings`` and ``plans`` are what is explored, ``surrogate`` learns what was found, and
``environments`` gives all of it to Gymnasium.
"""
