"""What models in shards share: meshes, the registry, roots, gradients, state, hooks."""
