"""Tile graphs: work that was cut into tiles beforehand, played on cores that share a memory and a network.

``graph`` is what a file says, ``reading`` reads and writes it, ``assignment`` gives tiles without a core one,
``interconnect`` says which links bytes cross, ``play`` plays it on the engine, ``fusing`` cuts layers that follow each
other into tiles.
"""
