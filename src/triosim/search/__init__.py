"""Many plans for one workload on one machine: which to try (``grid``), what each gave (``outcome``), one after another
or on several processes (``sweep``), and what is known already when a search was cut short (``journal``)."""
