"""The machine: accelerators, hosts, links and how they are joined.

Read in this order: ``accelerator`` and ``system`` (what a machine is, the contract that the rest of the program sees),
``topology`` and ``topologies`` (builders), ``catalog`` (devices, links and ready systems that are known), ``wiring``
(from what is said of a link to edges), ``description`` (files that describe a machine), ``cluster`` (from a description
to a system), ``build`` (what others call) and ``describe`` (a system in plain values).
"""
