"""Serving: requests and a fleet of model replicas in, latencies and throughput out.

Read in this order: ``requests`` (what arrives), ``kv_cache`` (what is held), ``policy`` and ``engines`` (who gets how
many tokens), ``step_times`` (how long a step takes), ``replica`` and ``fleet`` (when everything happens), ``routers``
(who serves it), ``metrics`` (what came out).
"""
