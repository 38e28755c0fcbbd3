"""Who runs what when: pipeline stages and schedules, and the programs of the ranks."""
