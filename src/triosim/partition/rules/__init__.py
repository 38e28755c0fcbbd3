"""Rules: how weights, inputs and activations are placed on an axis of the mesh, one file each."""
