"""Accelerators from their design: what a loop nest on stores and arrays moves, takes and costs.

``problem`` says what is computed, ``architecture`` on what, ``mapping`` in which order; ``nest`` counts, ``evaluate``
turns counts into cycles and joules, ``mapper`` looks for good mappings.  ``systolic`` and ``sparse`` hold the closed
forms of systolic arrays and of zeros.  Nothing here knows traces.
"""
