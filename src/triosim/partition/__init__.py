"""What each rank holds and sends: named axes, placements of values on them, and the transfers that change placements.

A *rule* (one file in ``partition/rules``) places weights and inputs on an axis; one walk propagates the placements
through the operators and inserts the transfers.
"""
