"""Three ways to get a trace: from a model's configuration, from the files of other tools, from a recording."""
