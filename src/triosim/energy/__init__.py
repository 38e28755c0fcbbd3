"""Joules of everything that runs, what they cost and what they emit.

``device.py`` says what a device draws, ``work.py`` what an operator takes, ``governor.py`` what a power cap or a lower
clock makes of its times, and ``account.py`` adds a played job up.  ``money.py``, ``carbon.py`` and ``cost.py`` go from
there to dollars and grams.  Every constant is a row of ``constants.csv``.
"""
