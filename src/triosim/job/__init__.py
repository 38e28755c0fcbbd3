"""A whole job from one of its iterations: how long so many tokens take with checkpoints and failures."""
